"""A certificate that is renewed while the webhook runs is served; an unusable one changes nothing."""

import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest

from shardtune.service.kubeflow.renewal import CertificateRenewal
from tests.support.processes.certificates import Authority, CertificateFiles


def served_certificate(context: ssl.SSLContext, authority: Authority) -> bytes:
    """Certificate that a new connection gets."""
    server, client = socket.socketpair()
    known = ssl.create_default_context(cafile=authority.certificate)
    with server, client:
        answering = threading.Thread(target=lambda: context.wrap_socket(server, server_side=True).close())
        answering.start()
        with known.wrap_socket(client, server_hostname="127.0.0.1") as connection:
            served = connection.getpeercert(binary_form=True)
        answering.join()
    assert served is not None
    return served


def of_file(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> CertificateFiles:
    return authority.issue("server")


@pytest.fixture
def context(files: CertificateFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context


def test_new_connections_get_the_renewed_certificate(
    authority: Authority, files: CertificateFiles, context: ssl.SSLContext
) -> None:
    renewal, earlier = CertificateRenewal(context, files.certificate, files.key), of_file(files.certificate)
    renewal.look()
    assert served_certificate(context, authority) == earlier
    assert authority.issue("server") == files
    renewal.look()
    assert served_certificate(context, authority) == of_file(files.certificate) != earlier


def test_a_certificate_with_another_s_key_is_not_served(
    authority: Authority, files: CertificateFiles, context: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    renewal, earlier = CertificateRenewal(context, files.certificate, files.key), of_file(files.certificate)
    shutil.copy(authority.issue("another").certificate, files.certificate)
    renewal.look()
    assert served_certificate(context, authority) == earlier
    assert "cannot be renewed" in caplog.text
    files.certificate.unlink()
    renewal.look()
    assert served_certificate(context, authority) == earlier
