from .layouts import (
    PicturedTensor as PicturedTensor,
)
from .program import (
    pictures_of as pictures_of,
    write_pictures as write_pictures,
)
