"""Everything beyond one process: workers as Ray actors, what they are handed, and how weights reach them."""

from importlib.util import find_spec

from burnish.utils.errors import UserError

# the only package that imports Ray; with runtime=local nothing imports this one
if find_spec("ray") is None:
    raise UserError("runtime=ray needs Ray, which is not installed: pip install 'burnish[ray]'")
