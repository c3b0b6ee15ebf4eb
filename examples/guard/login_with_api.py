"""The same login, which asks the HTTP API itself: so that the user is counted, and not only the address."""

import json
import os
import urllib.request

from login import Login, serve

API = os.environ.get("API_URL", "http://127.0.0.1:8090")
TOKEN = os.environ.get("API_TOKEN", "change-me-16-bytes-or-more")


def ask(path, body):
    request = urllib.request.Request(
        f"{API}{path}",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=5) as response:
        return json.load(response)


class GuardedLogin(Login):
    def do_POST(self):
        user, password = self.credentials()
        # Behind a proxy, take the address from the header that the proxy sets: this one is the proxy's.
        attempt = {"address": self.client_address[0], "user": user, "path": self.path}
        try:
            decision = ask("/v1/attempts", attempt)
        except (OSError, ValueError):
            # No decision is not a permission.
            return self.answer(503, "please try again later\n")
        if not decision["admitted"]:
            seconds = decision["retry_after"]
            headers = [("Retry-After", str(seconds))] if seconds else []
            return self.answer(429, decision["message"] + "\n", headers=headers)
        is_correct = self.is_correct(user, password)
        try:
            outcome = "success" if is_correct else "failure"
            ask(f"/v1/attempts/{decision['token']}/outcome", {"outcome": outcome})
        except (OSError, ValueError):
            pass  # it is a failure when its lease ends
        if is_correct:
            self.answer(200, f"hello, {user}\n")
        else:
            self.answer(401, "wrong user or password\n")


if __name__ == "__main__":
    serve(GuardedLogin)
