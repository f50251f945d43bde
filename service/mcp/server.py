"""MCP server: lists and calls the tools, resources and prompts, whatever the transport."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio.to_thread
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    TextContent,
    Tool,
    ToolAnnotations,
)

from shardtune import __version__
from shardtune.service.mcp import resources
from shardtune.service.mcp.errors import ToolRejected, rejections
from shardtune.service.mcp.product import Product
from shardtune.service.mcp.prompts import PROMPTS
from shardtune.service.mcp.tool_table import TOOLS, ToolEntry

log = logging.getLogger(__name__)
Result = TypeVar("Result")
Context = ServerRequestContext[Any, Any]

INSTRUCTIONS = (
    "Shardtune finds the fastest training configuration of a PyTorch model on given hardware. Begin with predict, memory, "
    "explain_config or plan: they use no GPU. Every figure says whether it is measured, projected or predicted, with its "
    "band and unit; repeat that to the user. A prediction ranks configurations, and only a study's verdict `confirmed` "
    "proves a gain. studies_create and diagnose of a trial can cost GPU-seconds: ask the user for the budget, show the "
    "estimate, and never invent a confirmation. An error names field, value and remedy; correct the call by it."
)


class Host(Protocol):
    """Host of the MCP server: either a process on a user's machine, or the service."""

    has_service: bool
    """Whether studies can be read."""

    def product(self, context: Context) -> AbstractContextManager[Product]:
        """Context manager that yields the functions that one tool call may use."""

    def slot(self, context: Context) -> AbstractAsyncContextManager[None]:
        """Context manager that limits how many tool calls run at the same time."""


def create_server(host: Host) -> Server[Any]:
    """Create the MCP server that runs in a host (a process on a user's machine, or the service)."""
    handlers = _Handlers(host)
    return Server(
        "shardtune",
        version=__version__,
        title="Shardtune",
        instructions=INSTRUCTIONS,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
        on_list_prompts=handlers.list_prompts,
        on_get_prompt=handlers.get_prompt,
    )


class _Handlers:
    """Handlers of the protocol's requests."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def list_tools(self, _context: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=list(map(_described, TOOLS.values())))

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        entry = TOOLS.get(params.name)
        if entry is None:
            raise _invalid(f"tool ({params.name[:100]}) is unknown; the tools are {', '.join(TOOLS)}")
        return await self._in_thread(context, partial(_call, entry, params.arguments or {}))

    async def list_resources(self, _context: Context, _params: PaginatedRequestParams | None) -> ListResourcesResult:
        return resources.list_resources(self._host.has_service)

    async def list_templates(
        self, _context: Context, _params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        return resources.list_templates(self._host.has_service)

    async def read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        try:
            return await self._in_thread(context, partial(resources.read, uri=str(params.uri)))
        except ToolRejected as rejected:
            raise _invalid(str(rejected)) from None

    async def list_prompts(self, _context: Context, _params: PaginatedRequestParams | None) -> ListPromptsResult:
        return ListPromptsResult(
            prompts=[
                Prompt(
                    name=name,
                    title=entry.title,
                    description=entry.description,
                    arguments=[
                        PromptArgument(name=each.name, description=each.description, required=each.is_required)
                        for each in entry.arguments
                    ],
                )
                for name, entry in PROMPTS.items()
            ]
        )

    async def get_prompt(self, _context: Context, params: GetPromptRequestParams) -> GetPromptResult:
        entry = PROMPTS.get(params.name)
        if entry is None:
            raise _invalid(f"prompt ({params.name[:100]}) is unknown; the prompts are {', '.join(PROMPTS)}")
        values: Mapping[str, str] = params.arguments or {}
        missing = [each.name for each in entry.arguments if each.is_required and not values.get(each.name)]
        if missing:
            raise _invalid(f"{missing[0]} (missing): the prompt {params.name} needs it; add it")
        message = PromptMessage(role="user", content=TextContent(type="text", text=entry.text(values)))
        return GetPromptResult(description=entry.description, messages=[message])

    async def _in_thread(self, context: Context, work: Callable[[Product], Result]) -> Result:
        """Run blocking work in a separate thread, within the host's limit of simultaneous tool calls."""
        async with self._host.slot(context):
            # A limiter of its own: these threads wait for requests that need the threads of the service.
            return await anyio.to_thread.run_sync(
                self._work, context, work, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )

    def _work(self, context: Context, work: Callable[[Product], Result]) -> Result:
        with self._host.product(context) as product:
            return work(product)


def _call(entry: ToolEntry, values: Mapping[str, Any], product: Product) -> CallToolResult:
    """Call a tool. If it fails in an expected way, return a result with a line for each mistake, which the agent
    reads."""
    try:
        with rejections(entry.arguments):
            arguments = entry.arguments.model_validate(values)
        answer = entry.function(product, arguments)
    except ToolRejected as rejected:
        return CallToolResult(content=[TextContent(type="text", text=str(rejected))], is_error=True)
    except Exception:  # a border: the agent must not see an unexpected error's text, which may contain anything.
        log.exception("tool failed", extra={"tool": entry.name})
        text = f"tool ({entry.name}) failed; the log of the server has the reason"
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
    # Without nulls: the text is what most agents read.
    text = answer.model_dump_json(exclude_none=True)
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=answer.model_dump(mode="json")
    )


def _described(entry: ToolEntry) -> Tool:
    return Tool(
        name=entry.name,
        title=entry.title,
        description=entry.description,
        input_schema=entry.input_schema,
        output_schema=entry.output_schema,
        annotations=ToolAnnotations(
            title=entry.title,
            read_only_hint=not entry.can_cost,
            destructive_hint=False,
            idempotent_hint=not entry.can_cost,
            open_world_hint=False,
        ),
    )


def _invalid(message: str) -> MCPError:
    return MCPError(code=INVALID_PARAMS, message=message)
