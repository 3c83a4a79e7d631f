"""What was carried out, but its answer is lost: a proxy that drops it."""

import os
import socket
import threading
import unittest

import psycopg

SERVER = f"{os.environ['PGHOST']}/.s.PGSQL.{os.environ.get('PGPORT', 5432)}"


class Proxy:
    """Carries one connection; loses the answer to the message with this text."""

    def __init__(self, text):
        self.text = text
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lose = False
        threading.Thread(target=self.carry, daemon=True).start()

    def carry(self):
        with (self.listener, self.listener.accept()[0] as self.client,
              socket.socket(socket.AF_UNIX) as self.server):
            self.server.connect(SERVER)
            answers = threading.Thread(target=self.answers, daemon=True)
            answers.start()
            while message := self.client.recv(65536):
                if self.text in message:
                    self.lose = True
                self.server.sendall(message)
            answers.join()

    def answers(self):
        while answer := self.server.recv(65536):
            if self.lose:
                break           # the server has done it, and said so
            self.client.sendall(answer)
        self.client.shutdown(socket.SHUT_RDWR)


def connect(text=None, **options):
    """Past a proxy that loses the answer to this text, if there is one."""
    if text is None:
        return psycopg.connect(**options)
    proxy = Proxy(text)
    return psycopg.connect(host="127.0.0.1", port=proxy.port,
                           sslmode="disable", gssencmode="disable", **options)


class LostAnswers(unittest.TestCase):

    def setUp(self):
        self.db = connect(autocommit=True)
        self.addCleanup(self.db.close)
        self.db.execute("TRUNCATE idempotency_keys")
        self.db.execute("DROP TABLE IF EXISTS effects;"
                        " CREATE TABLE effects (what text)")

    def order(self, db):
        """Same transaction; returns the result, and how it came about."""
        status, result = db.execute(
            "SELECT status, result FROM idem_reserve('order')").fetchone()
        if status == "reserved":
            db.execute("INSERT INTO effects VALUES ('order')")
            result = db.execute("SELECT idem_complete('order', v), v"
                                " FROM (SELECT '{\"n\": 1}'::jsonb) AS x (v)"
                                ).fetchone()[1]
        db.commit()
        return status, result

    def test_of_a_commit(self):
        with self.assertRaises(psycopg.OperationalError):
            self.order(connect(b"COMMIT"))
        with connect() as db:
            self.assertEqual(self.order(db), ("done", {"n": 1}))
        self.assertEqual(self.db.execute("SELECT count(*) FROM effects")
                         .fetchone(), (1,))

    def test_of_a_completion(self):
        token, = self.db.execute("SELECT token FROM idem_reserve('k')").fetchone()
        complete = "SELECT idem_complete('k', '1', %s)"
        with self.assertRaises(psycopg.OperationalError):
            connect(b"idem_complete", autocommit=True).execute(complete, (token,))
        self.assertEqual(self.db.execute(complete, (token,)).fetchone(), (False,))

    def reserve(self, db, **holder):
        query = "SELECT status, attempt FROM idem_reserve('k'%s)"
        return db.execute(query % "".join(
            f", {name} => '{value}'" for name, value in holder.items())).fetchone()

    def test_of_a_reservation(self):
        with self.assertRaises(psycopg.OperationalError):
            self.reserve(connect(b"idem_reserve", autocommit=True))
        self.assertEqual(self.reserve(self.db), ("in_progress", 1))

    def test_of_a_reservation_with_a_holder(self):
        with self.assertRaises(psycopg.OperationalError):
            self.reserve(connect(b"idem_reserve", autocommit=True), holder="me")
        self.assertEqual(self.reserve(self.db, holder="me"), ("reserved", 2))


if __name__ == "__main__":
    unittest.main()
