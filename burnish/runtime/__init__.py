"""Everything beyond one process: workers as Ray actors, what they are handed, and how weights reach them."""

from burnish.errors import UserError

try:
    import ray as _  # the only package that may import it; with runtime=local nothing imports this one
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise UserError("runtime=ray needs Ray, which is not installed: pip install 'burnish[ray]'") from None
