#!/usr/bin/python3
"""The outside world on 127.0.0.1: it acts, keeps a ledger, loses answers.

    provider.py LEDGER [--loss P] [--late SECONDS] [--window SECONDS]

POST /<action> with a JSON object acts at once, and answers with a receipt.  A
request whose Idempotency-Key was seen within the WINDOW (default: for ever)
gets the receipt of that act again, as with real providers; without the header
every request is an act.  With probability P the answer is lost: the connection
is closed without one, or it comes SECONDS late.

LEDGER gets a line of JSON for each request that acted or was a repeat:
{"action", "body", "key", "repeat", "receipt"}.  Nobody else writes it, so it
tells how often something really happened.

POST /next with a JSON array decides what becomes of the next requests:
  "ok"           act and answer
  "lost"         act, then close the connection without an answer
  "late"         act, then answer late
  "held"         act, then answer when somebody has asked POST /release
  "broken"       act, then answer 500
  "declined"     402 with {"error": "declined"}, and no act; unless this key
                 has acted: that is what its repetitions hear
  "unavailable"  503, and no act; so "busy" 429, "conflict" 409 (a request with
                 this key is under way), "unauthorized" 401

Prints its port; ends when its standard input does.
"""

import argparse
import collections
import http.server
import json
import os
import random
import sys
import threading
import time

# Fates without an act, and their HTTP status
REFUSALS = {"declined": 402, "unavailable": 503, "busy": 429, "conflict": 409,
            "unauthorized": 401}


class Provider(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, options):
        super().__init__(("127.0.0.1", 0), Handler)
        self.options = options
        self.ledger = open(options.ledger, "a", encoding="utf-8")
        self.lock = threading.Lock()
        self.acts = 0
        self.by_key = {}
        self.fates = collections.deque()
        self.released = threading.Event()

    def fate(self):
        """What becomes of the next request."""
        with self.lock:
            if self.fates:
                return self.fates.popleft()
        chance = random.random()
        if chance < self.options.loss / 2:
            return "lost"
        return "late" if chance < self.options.loss else "ok"

    def has_acted(self, key):
        with self.lock:
            return time.monotonic() < self.by_key.get(key, (None, 0))[1]

    def act(self, action, body, key):
        """Act, unless this key was seen before; return the receipt."""
        now = time.monotonic()
        with self.lock:
            receipt, until = self.by_key.get(key, (None, 0))
            repeat = receipt is not None and now < until
            if not repeat:
                self.acts += 1
                receipt = {**body, "number": f"{action}_{self.acts:04}"}
                if key is not None:
                    self.by_key[key] = receipt, now + self.options.window
            print(json.dumps({"action": action, "body": body, "key": key,
                              "repeat": repeat, "receipt": receipt}),
                  file=self.ledger, flush=True)
            return receipt

    def handle_error(self, request, client_address):
        """A caller that is gone is no news here."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
    wbufsize = -1

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            return                  # the caller died while he was sending
        body = json.loads(body)
        action = self.path.lstrip("/")
        if action == "next":
            self.server.fates.extend(body)
            return self.answer(200, body)
        if action == "release":
            self.server.released.set()
            return self.answer(200, body)

        key = self.headers["Idempotency-Key"]
        time.sleep(0.02)            # the bank
        fate = self.server.fate()
        if fate == "declined" and self.server.has_acted(key):
            fate = "ok"
        if fate in REFUSALS:
            return self.answer(REFUSALS[fate], {"error": fate})
        receipt = self.server.act(action, body, key)
        if fate == "lost":
            return                  # closes the connection
        if fate == "late":
            time.sleep(self.server.options.late)
        if fate == "held":
            self.server.released.wait()
        if fate == "broken":
            return self.answer(500, {"error": fate})
        self.answer(200, receipt)

    def answer(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ledger")
    parser.add_argument("--loss", type=float, default=0)
    parser.add_argument("--late", type=float, default=1)
    parser.add_argument("--window", type=float, default=float("inf"))
    provider = Provider(parser.parse_args())
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    print(provider.server_port, flush=True)
    sys.stdin.read()
    os._exit(0)                     # without waiting for late answers


main()
