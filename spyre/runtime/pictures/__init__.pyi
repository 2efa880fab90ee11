from .program import (
    layout_picture as layout_picture,
    pictures_of as pictures_of,
    write_pictures as write_pictures,
)
