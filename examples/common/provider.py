#!/usr/bin/python3
"""A payment provider on 127.0.0.1 that charges, then loses some answers.

    provider.py LEDGER LOSS LATE

POST /charges charges at once and writes a line to LEDGER.  With probability
LOSS the answer is lost: the connection is closed without one, or it comes LATE
seconds later.  A request with an Idempotency-Key that was charged before gets
the receipt of that charge again, as with real providers; without the header
every request is a charge.  Prints its port; ends when its standard input does.
"""

import http.server
import json
import os
import random
import sys
import threading
import time


class Provider(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, ledger, loss, late):
        super().__init__(("127.0.0.1", 0), Handler)
        self.ledger = open(ledger, "w", encoding="utf-8")
        self.loss = loss
        self.late = late
        self.lock = threading.Lock()
        self.charges = 0
        self.by_key = {}

    def charge(self, invoice, key):
        """Charge, unless this key was charged before; return the receipt."""
        with self.lock:
            receipt = self.by_key.get(key)
            repeat = receipt is not None
            if not repeat:
                self.charges += 1
                receipt = {"charge": f"ch_{self.charges:04}",
                           "invoice": invoice["id"],
                           "amount": invoice["amount"]}
                if key is not None:
                    self.by_key[key] = receipt
            print(json.dumps({**receipt, "key": key, "repeat": repeat}),
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
        invoice = json.loads(body)
        time.sleep(0.02)            # the bank
        receipt = self.server.charge(invoice, self.headers["Idempotency-Key"])

        fate = random.random()
        if fate < self.server.loss / 2:
            return                  # closes the connection
        if fate < self.server.loss:
            time.sleep(self.server.late)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(receipt).encode())

    def log_message(self, *args):
        pass


def main():
    ledger, loss, late = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    provider = Provider(ledger, loss, late)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    print(provider.server_port, flush=True)
    sys.stdin.read()
    os._exit(0)                     # without waiting for late answers


main()
