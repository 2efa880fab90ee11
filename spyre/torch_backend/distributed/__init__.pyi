from . import compat as compat, group as group, operators as operators
