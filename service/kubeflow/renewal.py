"""TLS certificate of the webhook's server, read again when its files change: cert-manager renews it in running pods."""

import hashlib
import logging
import ssl
from pathlib import Path

import uvicorn

_TICKS = 600
"""Number of uvicorn's ticks between two looks at the files; there are ten ticks a second."""

log = logging.getLogger(__name__)


class CertificateRenewal:
    """Certificate and private key of an SSL context, which new connections get as soon as the files hold new ones."""

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        """Prepare the renewal of a context that has loaded the present files."""
        self._context, self._files = context, (certificate, key)
        self._seen = self._digest()

    def look(self) -> None:
        """Load the files into the context if they have changed. Files that cannot be used are left, with a line in the log."""
        try:
            digest = self._digest()
            if digest == self._seen:
                return
            # Tried elsewhere first: a certificate whose key is not its own would stay in the context.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
            self._context.load_cert_chain(*self._files)
        except OSError as error:
            log.warning("certificate (%s) cannot be renewed: %s; the earlier one stays in use", self._files[0], error)
            return
        self._seen = digest
        log.info("certificate (%s) was renewed", self._files[0])

    def _digest(self) -> str:
        return hashlib.sha256(b"\0".join(file.read_bytes() for file in self._files)).hexdigest()


class RenewingServer(uvicorn.Server):
    """Server that looks once a minute for a renewed certificate."""

    def __init__(self, config: uvicorn.Config, renewal: CertificateRenewal) -> None:
        super().__init__(config)
        self._renewal = renewal

    async def on_tick(self, counter: int) -> bool:
        """Look for a renewed certificate now and then (see `uvicorn.Server.on_tick`)."""
        if counter % _TICKS == 0:
            self._renewal.look()
        return await super().on_tick(counter)
