"""What is registered as a Kubernetes cluster may be anything that answers."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from clusters.clouds.base import CloudError
from clusters.clouds.kubernetes.client import Client
from clusters.clouds.kubernetes.inspection import inspect


@pytest.fixture
def web_server():
    """serve(status, body) -> a client of a server that answers everything so."""
    servers = []

    def serve(status, body):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                """Nothing is printed."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "main",
            "contexts": [{"name": "main", "context": {"cluster": "one", "user": "me"}}],
            "clusters": [{"name": "one", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "me", "user": {"token": "abc"}}],
        }
        return Client.connect(config)

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"<html>Welcome</html>"), (302, b""), (200, b"[]"), (200, b"{}"), (200, b"null")]
)
def test_a_web_server_is_no_kubernetes_cluster(web_server, status, body):
    with pytest.raises(CloudError, match="not the API server of a Kubernetes cluster"):
        inspect(web_server(status, body), ())
