from .activation import (
    activate as activate,
    autoload as autoload,
    is_active as is_active,
)
