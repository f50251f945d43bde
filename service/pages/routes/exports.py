"""Pages of a configuration's files, in one export format at a time, and their download as a zip archive."""

import io
import zipfile
from collections.abc import Mapping
from typing import get_args

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from shardtune.api_schemas.studies.exports import Export, ExportFormat
from shardtune.service.http.errors import Invalid, NotFound
from shardtune.service.pages.rendering import render
from shardtune.service.process.context import Context, ContextDep
from shardtune.service.studies import create_and_read as rules
from shardtune.service.studies.results import export_config

router = APIRouter(prefix="/studies/{study_id}/export")

FORMS: tuple[ExportFormat, ...] = get_args(ExportFormat)


@router.get("")
def show_export(
    request: Request, context: ContextDep, study_id: str, which: str = "best", form: str = "standard"
) -> Response:
    """Show the files of one format, and the settings that the format cannot express."""
    study = rules.read_study(context, study_id)
    chosen = _form(form)
    try:
        export, rejected = export_config.export_as(context, study_id, which, chosen), ""
    except Invalid as error:
        # A format whose consumer lacks the backend: the page stays usable to choose another one.
        export, rejected = Export(format=chosen, files={}), error.errors[0].message
    return render(request, "export.html", study=study, which=which, export=export, rejected=rejected, forms=FORMS)


@router.get("/{name}")
def download(context: ContextDep, study_id: str, name: str, which: str = "best", form: str = "standard") -> Response:
    """Download a file of an export; `all.zip` holds a folder for each format in which the configuration can be
    written."""
    if name == "all.zip":
        return _attached(_zipped(_every_form(context, study_id, which)), f"{study_id}-{which}.zip", "application/zip")
    files = export_config.export_as(context, study_id, which, _form(form)).files
    if name not in files:
        raise NotFound("unknown_file", f"There is no file {name} in this export; it has {', '.join(files)}.")
    return _attached(files[name].encode(), name, PlainTextResponse.media_type)


def _form(name: str) -> ExportFormat:
    """Return the export format with the given name."""
    match = next((form for form in FORMS if form == name), None)
    if match is None:
        raise NotFound("unknown_file", f"There is no export format {name}; the formats are {', '.join(FORMS)}.")
    return match


def _every_form(context: Context, study_id: str, which: str) -> dict[str, str]:
    """Return the files of all export formats by folder and name, except formats of programs that lack the
    configuration's backend."""
    contents: dict[str, str] = {}
    for form in FORMS:
        try:
            files = export_config.export_as(context, study_id, which, form).files
        except Invalid:
            continue
        contents |= {f"{form}/{name}": text for name, text in files.items()}
    return contents


def _zipped(files: Mapping[str, str]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return written.getvalue()


def _attached(content: bytes, name: str, media_type: str | None) -> Response:
    # Downloaded, never rendered: file contents come from study files and must not run as a page of this origin.
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return Response(content, media_type=media_type, headers=headers)
