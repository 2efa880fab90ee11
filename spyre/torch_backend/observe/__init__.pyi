from .launches import (
    launches_noted as launches_noted,
)
