"""Name the extra that a command needs, where the package was installed without it."""

_EXTRAS = {
    "service": (
        "alembic",
        "cronsim",
        "fastapi",
        "huggingface_hub",
        "jinja2",
        "optuna",
        "prometheus_client",
        "psycopg",
        "multipart",
        "sqlalchemy",
        "standardwebhooks",
        "starlette",
        "uvicorn",
    ),
    "worker": ("accelerate", "deepspeed", "peft", "pynvml", "torch", "transformers"),
    "mcp": ("mcp", "mcp_types"),
    "8bit": ("bitsandbytes",),
    "fp8": ("torchao",),
    "gp": ("scipy",),
    "ray": ("ray",),
    "telemetry": ("opentelemetry",),
}
"""Names of the Python modules that each extra of `pyproject.toml` installs."""


def remedy(error: ModuleNotFoundError) -> str | None:
    """Return a line that names the extra of `pyproject.toml` which installs the missing module; None if no extra
    does."""
    module = (error.name or "").partition(".")[0]
    extra = next((name for name, modules in _EXTRAS.items() if module in modules), None)
    if extra is None:
        return None
    return f"this command needs the package {module}, which is not installed; run {install_command(extra)}"


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation, in words for an error. In another environment, pip
    would take a package of this name from an index, where it is not this project's.
    """
    return f"`pip install 'shardtune[{extra}]'` with this environment's pip, since no index has this project's package"
