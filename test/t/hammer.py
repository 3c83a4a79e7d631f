"""Clients that do everything at once to a few keys, and keep a log of it.

    hammer.py CONNINFO SEED SECONDS

Each client is a process with a connection of its own.  It calls idem_tool's
functions at random, in single statements and in transactions of every kind,
with tokens that are right, stale, wrong or missing, its own and others'.
Some more sessions run inside the server, where no client's round trip keeps
their calls apart, and one sweeps.  Each win is recorded in a side table
within the same transaction.

When all are done, judge.py goes through the logs.  Prints one line per check,
as "ok - name" or "not ok - name" and what was wrong.
"""
import multiprocessing
import random
import sys
import time

import psycopg

import judge
from judge import Call, Txn

CLIENTS = 16
STORMS = 3
KEYS = [(scope, f'k{n}') for scope in ('', 's') for n in range(10)]
# short, so that keys are forgotten and start again while callers run
OPTIONS = ('-c idem_tool.result_ttl=1s -c idem_tool.unknown_ttl=1s '
           '-c idem_tool.reservation_ttl=2s')

SCHEMA = '''
CREATE TABLE win (scope text, key text, attempt int, token bigint,
    created_at timestamptz, xid xid8);

-- microseconds since 1970, as the clients' clocks have it
CREATE FUNCTION us(timestamptz) RETURNS bigint IMMUTABLE
RETURN (extract(epoch FROM $1) * 1000000)::bigint;

-- rows of the table that this backend has written so far
CREATE FUNCTION writes() RETURNS bigint VOLATILE
RETURN pg_stat_get_xact_tuples_inserted('idempotency_keys'::regclass) +
    pg_stat_get_xact_tuples_updated('idempotency_keys'::regclass);
'''

# Calls in single transactions, as fast as the server can; what came of a
# transaction is logged after its end
STORM = '''
CREATE TABLE storm_log (number int, n int, fn text, k int, args jsonb,
    answer jsonb, error text, wrote int, start_at bigint, end_at bigint,
    xid text, kept bool, end_start bigint, end_end bigint);

CREATE PROCEDURE storm(number int, seed float8, deadline timestamptz,
    scopes text[], keys text[]) LANGUAGE plpgsql AS $$
DECLARE
    l storm_log;
    a record;
    p float8;
    ms int;
    s text;
    ky text;
    tk bigint;
    before bigint;
BEGIN
    PERFORM setseed(seed);
    l.number := number;
    l.n := 0;
    WHILE clock_timestamp() < deadline LOOP
        l.n := l.n + 1;
        l.k := floor(random() * array_length(keys, 1));
        s := scopes[l.k + 1];
        ky := keys[l.k + 1];
        ms := 1 + floor(random() * 30);
        SELECT coalesce(max(token), 1) INTO tk FROM idempotency_keys AS t
        WHERE (t.scope, t.key) = (s, ky);
        p := random();
        l.fn := CASE WHEN p < 0.5 THEN 'reserve' WHEN p < 0.65 THEN 'release'
            WHEN p < 0.7 THEN 'abandon' WHEN p < 0.8 THEN 'complete'
            WHEN p < 0.93 THEN 'extend' ELSE 'lookup' END;
        l.args := jsonb_build_object('ttl', ms, 'token', tk);
        l.error := NULL;
        l.wrote := 0;
        l.start_at := us(clock_timestamp());
        BEGIN
            before := writes();
            CASE l.fn
            WHEN 'reserve' THEN
                l.args := jsonb_build_object('ttl', ms, 'holder', NULL,
                    'request', NULL, 'wait', CASE WHEN ms > 25 THEN ms END);
                SELECT * INTO STRICT a FROM idem_reserve(ky, scope => s,
                    ttl => ms * interval '1 ms',
                    wait => CASE WHEN ms > 25 THEN ms * interval '1 ms' END);
                l.answer := jsonb_build_array(a.status, a.result::text,
                    a.token, a.attempt, a.maybe_ran, us(a.created_at),
                    us(a.expires_at), a.retry_after);
            WHEN 'release' THEN
                l.answer := jsonb_build_array(idem_release(ky, tk, s));
            WHEN 'abandon' THEN
                l.answer := jsonb_build_array(idem_abandon(ky, tk, s));
            WHEN 'complete' THEN
                l.args := l.args || jsonb_build_object('result',
                    format('"%s-%s"', number, l.n));
                l.answer := jsonb_build_array(idem_complete(ky,
                    (l.args->>'result')::jsonb, tk, ms * interval '1 ms', s));
            WHEN 'extend' THEN
                l.answer := jsonb_build_array(us(idem_extend(ky,
                    ms * interval '1 ms', tk, s)));
            ELSE
                l.answer := jsonb_build_array(NULL, NULL, NULL, NULL, NULL,
                    NULL);
                FOR a IN SELECT * FROM idem_lookup(ky, s) LOOP
                    l.answer := jsonb_build_array(a.status, a.result::text,
                        a.attempt, a.maybe_ran, us(a.created_at),
                        us(a.expires_at));
                END LOOP;
            END CASE;
            l.wrote := writes() - before;
        EXCEPTION WHEN OTHERS THEN
            l.error := SQLSTATE;
        END;
        l.end_at := us(clock_timestamp());
        IF l.error IS NULL AND l.answer->>0 = 'reserved' THEN
            INSERT INTO win VALUES (s, ky, a.attempt, a.token, a.created_at,
                pg_current_xact_id());
        END IF;
        l.xid := pg_current_xact_id_if_assigned();
        l.kept := random() < 0.85;
        l.end_start := us(clock_timestamp());
        IF l.kept THEN
            COMMIT;
        ELSE
            ROLLBACK;
        END IF;
        l.end_end := us(clock_timestamp());
        INSERT INTO storm_log SELECT l.*;
        COMMIT;
    END LOOP;
END $$;
'''

# The first CTE is evaluated before the call because that depends on it
RESERVE = '''
WITH b AS MATERIALIZED (SELECT writes() AS n),
r AS MATERIALIZED (
    SELECT b.n, a.* FROM b, idem_reserve(
        CASE WHEN b.n IS NOT NULL THEN %(key)s END, ttl => %(ttl)s,
        request => %(request)s, wait => %(wait)s, takeover => %(takeover)s,
        holder => %(holder)s, scope => %(scope)s) AS a)
WIN
SELECT status, result::text, token, attempt, maybe_ran, us(created_at),
    us(expires_at), retry_after,
    writes() - n, pg_current_xact_id_if_assigned()::text
FROM r'''
WIN = ''', w AS (
    INSERT INTO win
    SELECT %(scope)s, %(key)s, attempt, token, created_at,
        pg_current_xact_id()
    FROM r WHERE status = 'reserved')'''

SETTLE = '''
WITH r AS MATERIALIZED (SELECT writes() AS n, CALL AS a)
SELECT ANSWER, writes() - n, pg_current_xact_id_if_assigned()::text FROM r'''

LOOKUP = '''
WITH b AS MATERIALIZED (SELECT writes() AS n)
SELECT status, result::text, attempt, maybe_ran, us(created_at),
    us(expires_at), writes() - n, pg_current_xact_id_if_assigned()::text
FROM b LEFT JOIN LATERAL idem_lookup(
    CASE WHEN b.n IS NOT NULL THEN %(key)s END, %(scope)s) ON true'''


def settle_sql(fn, args):
    """A call of one of the functions that act on a reservation"""
    call = f'idem_{fn}(key => %(key)s, scope => %(scope)s'
    for name in ('result', 'error', 'ttl', 'token'):
        if name in args:
            call += f', {name} => %({name})s'
    answer = 'us(a)' if fn == 'extend' else 'a'
    return SETTLE.replace('CALL', call + ')').replace('ANSWER', answer)


def connect(conninfo):
    return psycopg.connect(conninfo, autocommit=True, options=OPTIONS)


def now():
    return time.time_ns() // 1000


def milliseconds(ms):
    return None if ms is None else f'{ms} ms'


class Client:
    def __init__(self, conninfo, number, seed, tokens):
        self.number = number
        self.rng = random.Random(f'{seed}/{number}')
        self.tokens = tokens    # the latest of each key, known to all clients
        self.stale = [0] * len(KEYS)
        self.results = {}
        self.txns = []
        self.conn = connect(conninfo)

    def some(self, *choices):
        """One of (weight, value) pairs"""
        weights, values = zip(*choices)
        return self.rng.choices(values, weights)[0]

    # arguments

    def reserve_args(self):
        rng = self.rng
        return {
            'ttl': self.some((80, rng.randint(1, 200)),
                             (15, rng.randint(500, 3000)), (5, None)),
            'request': self.some((50, None), (42, '{"r": 0}'),
                                 (8, '{"r": 1}')),
            'wait': self.some((70, 0), (5, None), (25, rng.randint(1, 100))),
            'takeover': self.some((80, None), (4, 0),
                                  (10, rng.randint(50, 500)), (6, 3600000)),
            'holder': self.some((75, None), (25, f'client {self.number}')),
        }

    def outcome(self, k):
        """What to record: mostly new, now and then a known or a large one"""
        new = f'"{self.number}-{len(self.txns)}-{self.rng.random()}"'
        large = f'"{self.number}-{self.rng.randbytes(3000).hex()}"'
        result = self.some((60, new), (30, self.results.get(k, new)),
                           (5, large), (5, None))
        self.results[k] = result
        return result

    def settle_args(self, fn, k, own):
        rng = self.rng
        args = {}
        if fn in ('complete', 'fail'):
            name = 'result' if fn == 'complete' else 'error'
            args = {name: self.outcome(k),
                    'ttl': self.some((15, None), (85, rng.randint(10, 400)))}
        elif fn == 'extend':
            args = {'ttl': self.some((10, None), (90, rng.randint(1, 300)))}

        right = self.tokens[k]
        token = self.some((35 if own else 62, right), (12, self.stale[k]),
                          (5, rng.choice(self.tokens)), (3, right + 1),
                          (3, None), (70 if own else 12, 'none'))
        self.stale[k] = self.some((80, self.stale[k]), (20, right))
        if token != 'none':
            args['token'] = token
        return args

    # calls

    def any_call(self, k, own=False):
        """A function and what to call it with"""
        fn = self.some((45, 'reserve'), (9, 'complete'), (4, 'fail'),
                       (12, 'release'), (6, 'abandon'), (13, 'extend'),
                       (11, 'lookup'))
        if fn == 'reserve':
            return fn, self.reserve_args()
        if fn == 'lookup':
            return fn, {}
        return fn, self.settle_args(fn, k, own)

    def call(self, txn, k, fn, args):
        """Do it; returns the call also after an error"""
        if fn == 'reserve':
            sql = RESERVE.replace('WIN', '' if txn.read_only else WIN)
        elif fn == 'lookup':
            sql = LOOKUP
        else:
            sql = settle_sql(fn, args)
        scope, key = KEYS[k]
        call = Call(txn, fn, k, args)
        params = dict(args, scope=scope, key=key)
        for name in ('ttl', 'wait', 'takeover'):
            if name in params:
                params[name] = milliseconds(params[name])

        call.start = now()
        try:
            answers = self.conn.execute(sql, params).fetchall()
            call.end = now()
            call.rows = len(answers)
            *call.answer, call.wrote, xid = answers[0]
            txn.xid = xid or txn.xid
            if fn == 'reserve' and call.answer[0] == 'reserved':
                self.tokens[k] = call.answer[2]
        except psycopg.Error as error:
            call.end = now()
            call.error = error.sqlstate or str(error)
        txn.steps.append(call)
        return call

    def single(self, k, fn, args):
        txn = Txn((self.number, len(self.txns)))
        call = self.call(txn, k, fn, args)
        txn.committed = call.error is None
        txn.end_start, txn.end_end = call.start, call.end
        self.txns.append(txn)

    def singles(self):
        """A call, and now and then its repetition by a client that has lost
        the answer"""
        k = self.rng.randrange(len(KEYS))
        fn, args = self.any_call(k)
        self.single(k, fn, args)
        if self.rng.random() < (0.5 if fn in judge.OUTCOME else 0.05):
            self.single(k, fn, args)

    def begin(self, txn):
        rng = self.rng
        txn.read_only = rng.random() < 0.08
        isolation = self.some((50, 'READ COMMITTED'), (25, 'REPEATABLE READ'),
                              (25, 'SERIALIZABLE'))
        self.conn.execute(f'BEGIN ISOLATION LEVEL {isolation}' +
                          (' READ ONLY' if txn.read_only else ''))
        if rng.random() < 0.1:
            txn.lock_timeout = True
            self.conn.execute('SET LOCAL lock_timeout = '
                              f'{rng.randint(5, 100)}')

    def rollback_to(self, txn):
        start = now()
        self.conn.execute('ROLLBACK TO s')
        txn.steps.append(('rollback', start, now()))

    def finish(self, txn, commit):
        """End the transaction, now and then in two phases"""
        verb = 'COMMIT' if commit else 'ROLLBACK'
        # no writes, no identity of its own for two phases to be worth it
        if txn.xid and self.rng.random() < 0.05 and \
                self.conn.info.transaction_status != \
                psycopg.pq.TransactionStatus.INERROR:
            name = 'p' + '_'.join(map(str, txn.name))
            self.conn.execute(f"PREPARE TRANSACTION '{name}'")
            time.sleep(self.rng.random() * 0.01)
            verb += f" PREPARED '{name}'"
        txn.end_start = now()
        self.conn.execute(verb)
        txn.end_end = now()
        txn.committed = commit

    def transaction(self):
        """Several calls, on one key or on some, with savepoints"""
        rng = self.rng
        txn = Txn((self.number, len(self.txns)))
        txn.several = rng.random() < 0.15
        keys = rng.sample(range(len(KEYS)), 3 if txn.several else 1)
        own = set()
        failed = savepoint = False
        self.begin(txn)
        for _ in range(rng.randint(1, 6)):
            if not savepoint and rng.random() < 0.2:
                self.conn.execute('SAVEPOINT s')
                txn.steps.append(('savepoint',))
                savepoint = True
            k = rng.choice(keys)
            call = self.call(txn, k, *self.any_call(k, k in own))
            if call.error:
                failed = True
                if not savepoint:
                    break
                self.rollback_to(txn)
                failed = False
            elif call.answer and call.answer[0] == 'reserved':
                own.add(k)
            if savepoint and rng.random() < 0.2:
                self.rollback_to(txn)
            if rng.random() < 0.3:
                time.sleep(self.some((95, 0.003), (5, 0.04)) * rng.random())
        self.finish(txn, not failed and rng.random() < 0.75)
        self.txns.append(txn)

    def run(self, deadline):
        while time.time() < deadline:
            if self.rng.random() < 0.6:
                self.singles()
            else:
                self.transaction()
        self.conn.close()
        return self.txns


def sweep(conninfo, deadline):
    """Mark and remove rows past their time; returns when that was done"""
    spans = []
    with connect(conninfo) as conn:
        while time.time() < deadline:
            start = now()
            conn.execute('SELECT idem_sweep()')
            spans.append((start, now()))
            time.sleep(0.05)
    return spans


def storm(conninfo, number, seed, deadline):
    """Calls from within the server"""
    rng = random.Random(f'{seed}/{number}')
    scopes, keys = zip(*KEYS)
    txns = []
    with connect(conninfo) as conn:
        conn.execute('CALL storm(%s, %s, to_timestamp(%s), %s, %s)',
                     (number, rng.random(), deadline, list(scopes),
                      list(keys)))
        for row in conn.execute(
                'SELECT * FROM storm_log WHERE number = %s', (number,)):
            txn = Txn((number, row[1]))
            call = Call(txn, *row[2:5])
            call.answer, call.error, call.wrote = row[5:8]
            call.start, call.end, call.rows = row[8], row[9], 1
            txn.xid, txn.committed, txn.end_start, txn.end_end = row[10:]
            txn.steps.append(call)
            txns.append(txn)
    return txns


# what a process is to do, by number, so that a fork inherits the rest
def work(number):
    conninfo, seed, deadline, tokens = shared
    if number == CLIENTS + STORMS:
        return sweep(conninfo, deadline)
    if number >= CLIENTS:
        return storm(conninfo, number, seed, deadline)
    return Client(conninfo, number, seed, tokens).run(deadline)


def commit_times(conn, txns):
    """The order in which transactions that wrote committed"""
    xids = [txn.xid for txn in txns if txn.xid and txn.committed]
    times = dict(conn.execute('''
        SELECT x, us(pg_xact_commit_timestamp(x::xid8::xid))
        FROM unnest(%s::text[]) AS x''', (xids,)).fetchall())
    for txn in txns:
        txn.commit_time = times.get(txn.xid) if txn.committed else None


def main():
    global shared
    conninfo, seed, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    with connect(conninfo) as conn:
        conn.execute(SCHEMA)
        conn.execute(STORM)

        tokens = multiprocessing.Array('q', len(KEYS), lock=False)
        shared = conninfo, seed, time.time() + seconds, tokens
        context = multiprocessing.get_context('fork')
        number = CLIENTS + STORMS + 1
        with context.Pool(number) as pool:
            *logs, sweeps = pool.map(work, range(number), chunksize=1)
        txns = [txn for log in logs for txn in log]
        commit_times(conn, txns)
        judge.report(conn, KEYS, txns, sweeps)


if __name__ == '__main__':
    main()
