"""An application that reserves in a transaction, and whose next statement
forgot the transaction and goes by another connection of its pool.

Each of the settling functions, as it would be called: with the token that
idem_reserve has just returned, without one, and with one that nobody has.
Prints what each was told while the transaction was open, then completes in it.
"""
import sys

import psycopg

SETTLING = [
    ("complete", "SELECT idem_complete(%s, '1', {})"),
    ("fail", "SELECT idem_fail(%s, '1', {})"),
    ("release", "SELECT idem_release(%s, {})"),
    ("abandon", "SELECT idem_abandon(%s, {})"),
    ("extend", "SELECT idem_extend(%s, NULL, {})"),
]


def told(connection, statement, key, token):
    try:
        return connection.execute(statement.format(token), [key]).fetchone()[0]
    except psycopg.Error as error:
        return f"{error.sqlstate}: {error.diag.message_hint}"


def main(dsn):
    with (
        psycopg.connect(dsn) as transaction,
        psycopg.connect(dsn, autocommit=True) as forgetful,
    ):
        for key, complete in ("reserved", False), ("completed", True):
            token = transaction.execute(
                "SELECT token FROM idem_reserve(%s)", [key]
            ).fetchone()[0]
            if complete:
                transaction.execute("SELECT idem_complete(%s, '1')", [key])
            for name, statement in SETTLING:
                for what, given in (
                    ("token", token),
                    ("none", 0),
                    ("invented", token + 1000),
                ):
                    answer = told(forgetful, statement, key, given)
                    print(key, name, what, answer, sep="|", flush=True)
            status = transaction.info.transaction_status
            print(key, status.name, sep="|")
            if not complete:
                transaction.execute("SELECT idem_complete(%s, '1')", [key])
        transaction.commit()


main(sys.argv[1])
