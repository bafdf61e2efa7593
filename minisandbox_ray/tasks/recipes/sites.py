"""A web server for the inside of a sandbox, in place of sites that tests have links to; a program of its own.

Its arguments are hosts' names, each with a certificate and key in /tmp/NAME.pem. Whatever the address there, by http or
https, its page is one and the same, with the anchors that the tests look for; pictures are not found.
"""

import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_PAGE = b"<html><body><a id='defaulting'></a><a id='install-sphinx'></a></body></html>\n"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.endswith(".png"):
            self.send_error(404, "Not Found")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(_PAGE)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(_PAGE)

    do_HEAD = do_GET


def _context(name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"/tmp/{name}.pem")
    return context


def main(names: list[str]) -> None:
    contexts = {name: _context(name) for name in names}

    def choose(connection: ssl.SSLObject, name: str, _: ssl.SSLContext) -> None:
        connection.context = contexts.get(name, contexts[names[0]])

    entrance = _context(names[0])
    entrance.sni_callback = choose
    plain, secure = (ThreadingHTTPServer(("127.0.0.1", port), _Handler) for port in (80, 443))
    secure.socket = entrance.wrap_socket(secure.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=plain.serve_forever, daemon=True).start()
    secure.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
