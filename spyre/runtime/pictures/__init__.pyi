from .layouts import (
    PicturedTensor as PicturedTensor,
)
from .program import (
    PicturedProgram as PicturedProgram,
    pictured_bundle as pictured_bundle,
    pictured_case as pictured_case,
    pictures_of as pictures_of,
    write_pictures as write_pictures,
)
