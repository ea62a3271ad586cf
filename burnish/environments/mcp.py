"""Tools of servers that speak the Model Context Protocol (MCP), by its SDK."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burnish.utils.errors import UserError
from burnish.utils.media import open_image
from burnish.utils.user_code import reason

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from mcp import Client

LONGEST_ANSWER = 60.0  # seconds in which a server must start, and list its tools


@dataclass(frozen=True)
class McpTool:
    """A tool of a server to which there is a connection."""

    schema: dict[str, Any]  # as functions have it
    client: Client
    portal: BlockingPortal  # to the thread in whose event loop the client runs

    def __call__(self, **arguments: Any) -> str | list[Any]:
        """What the tool gives: a text, or texts and images.

        Raises:
            RuntimeError: the tool failed, with what it says.
        """
        result = self.portal.call(self.client.call_tool, self.schema["function"]["name"], arguments)
        parts = [_part(block) for block in result.content]
        if result.is_error:
            raise RuntimeError(" ".join(map(str, parts)))
        return "\n".join(parts) if all(isinstance(part, str) for part in parts) else parts


def _part(block: Any) -> Any:
    """A text, an image, or of other content its JSON."""
    if block.type == "image":
        return open_image(base64.b64decode(block.data))
    return block.text if block.type == "text" else block.model_dump_json(by_alias=True, exclude_none=True)


def connect(servers: Mapping[str, str], stack: ExitStack) -> dict[str, McpTool]:
    """The tools of some servers by name; connections last as long as ``stack``.

    Args:
        servers: by name, each as the command that starts it (it speaks over stdin and stdout), or as its address (over
            streamable HTTP). A command gets no environment variables but those that a program needs to start.
        stack: closes the connections, and ends what the commands started.

    Raises:
        UserError: a server can't be reached, or two tools have the same name.
    """
    try:
        from anyio.from_thread import start_blocking_portal
        from mcp import Client, StdioServerParameters
    except ImportError as error:
        raise UserError(f"environment.servers needs the library mcp: pip install 'burnish[mcp]' ({error})") from None
    portal = stack.enter_context(start_blocking_portal())
    found: dict[str, McpTool] = {}
    for name, where in servers.items():
        server: Any = where
        try:
            if "://" not in where:
                program, *arguments = shlex.split(where)
                server = StdioServerParameters(command=program, args=arguments)
            client = Client(server, read_timeout_seconds=LONGEST_ANSWER)
            stack.enter_context(portal.wrap_async_context_manager(client))
            tools = portal.call(_listed, client)
        except Exception as error:
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):  # of the client's tasks
                first = first.exceptions[0]
            raise UserError(f"environment.servers.{name} is {where!r}, which can't be used: {reason(first)}") from error
        for tool in tools:
            if tool.name in found:
                raise UserError(f"environment.servers.{name} has a tool {tool.name}, as another has; remove one server")
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            found[tool.name] = McpTool({"type": "function", "function": function}, client, portal)
    return found


async def _listed(client: Client) -> list[Any]:
    """All tools of a server, which gives them page by page."""
    page = await client.list_tools()
    tools = list(page.tools)
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools
