"""The same by a driver's test runner: unittest and psycopg.

In the database that the PG* variables name, which has the schema already.
"""

import unittest

import psycopg


class Charges(unittest.TestCase):

    def setUp(self):
        self.db = psycopg.connect(autocommit=True)      # two phases
        self.addCleanup(self.db.close)
        self.db.execute("TRUNCATE idempotency_keys, receipts")

    def begin(self, invoice):
        return self.db.execute(
            "SELECT status, attempt, token FROM begin_charge(%s, 42)",
            (invoice,)).fetchone()

    def test_a_late_caller_records_nothing(self):
        _, _, late = self.begin("inv_1")
        self.db.execute("SELECT idem_abandon('charge:inv_1', %s)", (late,))
        self.assertEqual(self.begin("inv_1")[:2], ("reserved", 2))

        with self.assertRaises(psycopg.Error) as caught:
            self.db.execute("SELECT end_charge('inv_1', %s, '{}')", (late,))
        self.assertEqual(caught.exception.sqlstate, "IK002")
        self.assertEqual(self.db.execute(
            "SELECT count(*) FROM receipts").fetchone(), (0,))

    def test_a_rival_who_has_not_committed(self):
        with psycopg.connect() as rival:                # in a transaction
            rival.execute("SELECT begin_charge('inv_2', 42)")
            self.assertEqual(self.begin("inv_2")[0], "in_progress")
            rival.rollback()
        self.assertEqual(self.begin("inv_2")[:2], ("reserved", 1))
