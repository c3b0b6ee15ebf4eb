"""A login that knows nothing of limits: wrong passwords are answered with 401."""

import hmac
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

PASSWORDS = {"user": "correct-horse", "admin": "battery-staple"}
FORM = """<!doctype html><title>Login</title>
<form method="post" action="/login"><input name="username"><input name="password" type="password"><button>Log in</button></form>
"""


class Login(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200, FORM, "text/html")

    def do_POST(self):
        user, password = self.credentials()
        # No password is checked at a path that the proxy does not guard.
        if self.path != "/login":
            self.answer(404, "not found\n")
        elif self.is_correct(user, password):
            self.answer(200, f"hello, {user}\n")
        else:
            self.answer(401, "wrong user or password\n")

    def credentials(self):
        length = int(self.headers.get("Content-Length") or 0)
        form = parse_qs(self.rfile.read(min(length, 10_000)).decode(errors="replace"))
        return [form.get(name, [""])[0] for name in ("username", "password")]

    def is_correct(self, user, password):
        expected = PASSWORDS.get(user, "")
        return hmac.compare_digest(expected.encode(), password.encode()) and user in PASSWORDS

    def answer(self, status, text, kind="text/plain", headers=()):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass  # a log of passwords that were typed into the wrong field helps nobody


def serve(handler):
    host, port = os.environ.get("LISTEN", "127.0.0.1:8001").rsplit(":", 1)
    server = ThreadingHTTPServer((host, int(port)), handler)
    print(f"Listening on http://{host}:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(Login)
