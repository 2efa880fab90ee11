from .program import (
    pictures_of as pictures_of,
    write_pictures as write_pictures,
)
