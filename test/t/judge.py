"""Was every answer in the log true?

The state of a key is a chain: each committed write makes the next state from
the one before.  The order of commits is known, so every write is checked
against the state that it met.  All other answers must be true of a state that
the key was in at some moment of the call, times being known to the
microsecond and judged in favour of the server.

Times are microseconds since 1970; times of memory have a lower and an upper
bound, because the moment of the write lies between call and answer.
"""
import bisect
import collections
import math

RESULT_TTL = UNKNOWN_TTL = 1_000_000    # as hammer.py sets them
RESERVATION_TTL = 2_000_000
TAKEOVER = 12 * 3600 * 1_000_000

SETTLING = ('complete', 'fail', 'release', 'abandon', 'extend')
OUTCOME = {'complete': 'done', 'fail': 'failed'}


class Txn:
    """A transaction of one client, or a single statement"""
    def __init__(self, name):
        self.name = name
        self.steps = []         # Call, ('savepoint',) or ('rollback', t, t)
        self.read_only = self.several = self.lock_timeout = False
        self.committed = False
        self.xid = self.commit_time = None
        self.end_start = self.end_end = None


class Call:
    """One call of a function, and what came of it"""
    def __init__(self, txn, fn, key, args):
        self.txn, self.fn, self.key, self.args = txn, fn, key, args
        self.start = self.end = None
        self.answer = self.error = None
        self.rows = self.wrote = 0
        # when it was rolled back: between these two
        self.undo_start = self.undo_end = None

    def usecs(self, name, default):
        ms = self.args.get(name)
        return default if ms is None else ms * 1000

    def outcome(self):
        """One word for what happened"""
        if self.error:
            return self.error
        if self.fn == 'extend':
            return True
        return self.answer[0]

    def __repr__(self):
        return (f'{self.txn.name} {self.fn} {self.args} -> '
                f'{self.error or self.answer} wrote {self.wrote}, '
                f'[{self.start}, {self.end}]' +
                (' read only' if self.txn.read_only else ''))


State = collections.namedtuple(
    'State', 'created attempt token status lease forget_min forget_max '
    'maybe request holder result maker')

Reserved = collections.namedtuple(
    'Reserved', 'status result token attempt maybe created expires retry')


def gone(state, call):
    """May the key have been absent, or past its memory?"""
    return state is None or state.forget_min <= call.end


def there(state, call):
    return state is not None and state.forget_max > call.start


def open_attempt(state):
    return state.status in ('in_progress', 'abandoned')


# What each function may say of a state.  These return the state after the
# call, or raise Wrong.

class Wrong(Exception):
    pass


def need(condition, text):
    if not condition:
        raise Wrong(text)


def within(value, low, high, text):
    need(value is not None and low <= value <= high,
         f'{text} {value} is not in [{low}, {high}]')


def may_not_write(call):
    """An error that is right whenever the call had to write or to wait"""
    return call.error == '25006' and call.txn.read_only


def figures(answer, state):
    need((answer.attempt, answer.created, answer.maybe) ==
         (state.attempt, state.created, state.maybe),
         'figures are not those of the state')


def first_attempt(call, state):
    """The key is absent"""
    if may_not_write(call):
        return state
    a = Reserved(*call.answer)
    need(a.status == 'reserved', f'{a.status}, but the key was absent')
    need(a.attempt == 1 and not a.maybe, 'not a first attempt')
    need(state is None or a.token > state.token, 'token did not rise')
    within(a.created, call.start, call.end, 'created_at')
    ttl = call.usecs('ttl', RESERVATION_TTL)
    within(a.expires, call.start + ttl, call.end + ttl, 'expires_at')
    return in_progress(call, a, call.args['request'])


def in_progress(call, a, request):
    return State(a.created, a.attempt, a.token, 'in_progress', a.expires,
                 a.expires + UNKNOWN_TTL, a.expires + UNKNOWN_TTL, a.maybe,
                 request, call.args['holder'], None, call.txn)


def next_attempt(call, state, takeover):
    if may_not_write(call):
        return state
    a = Reserved(*call.answer)
    need(a.status == 'reserved', f'{a.status}, but the key was free')
    need(a.attempt == state.attempt + 1, 'attempts do not count up')
    need(a.created == state.created, 'created_at changed')
    need(a.token > state.token, 'token did not rise')
    need(a.maybe == (takeover or state.maybe), f'maybe_ran is {a.maybe}')
    ttl = call.usecs('ttl', RESERVATION_TTL)
    low, high = call.start + ttl, call.end + ttl
    if takeover:
        end = state.created + call.usecs('takeover', TAKEOVER)
        need(end > call.start, 'taken over too late')
        low, high = min(low, end), min(high, end)
    within(a.expires, low, high, 'expires_at')
    return in_progress(call, a, state.request or call.args['request'])


def busy(call, state):
    """In a rival's hands, uncommitted: the committed figures, or none"""
    a = Reserved(*call.answer)
    need(a.status == 'in_progress', f'{a.status}, not in progress')
    need(call.end - call.start >= call.usecs('wait', 0), 'did not wait')
    if a.attempt is not None:
        need(state is not None, 'figures of a key that was absent')
        figures(a, state)
    return state


def running(call, state, at_once):
    """In progress, lease running"""
    a = Reserved(*call.answer)
    need(a.status == 'in_progress', f'{a.status}, not in progress')
    need(at_once or call.end - call.start >= call.usecs('wait', 0),
         'did not wait')
    figures(a, state)
    need(state.lease > call.start or state.maker is call.txn,
         'lease was over')
    if a.expires is None:
        need(state.lease <= call.end, 'expires_at is missing')
        return state
    need(a.expires == state.lease, 'expires_at is not the end of the lease')
    within(a.retry, 1, max(1, math.ceil((state.lease - call.start) / 1e6)),
           'retry_after')
    return state


def too_late(call, state):
    """Unknown outcome, takeover not permitted"""
    a = Reserved(*call.answer)
    need(a.status == 'expired', f'{a.status}, not expired')
    need(state.created + call.usecs('takeover', TAKEOVER) <= call.end,
         'takeover was still permitted')
    figures(a, state)
    return state


def replay(call, state):
    a = Reserved(*call.answer)
    need(a.status == state.status, f'{a.status}, not {state.status}')
    need(a.result == state.result, 'another result')
    figures(a, state)
    within(a.expires, state.forget_min, state.forget_max, 'expires_at')
    return state


def any_of(*branches):
    """The first that holds"""
    reasons = []
    for branch in branches:
        try:
            return branch()
        except Wrong as wrong:
            reasons.append(str(wrong))
    raise Wrong(' | '.join(reasons) or 'nothing fits')


def reserve_there(call, state, mine):
    """The key is there, within its memory"""
    request = call.args['request']
    holder = call.args['holder']
    if mine and state.status == 'in_progress' and state.maker is call.txn:
        need(not call.error, 'an error about an own reservation')
        return running(call, state, True)
    if request and state.request and request != state.request:
        need(call.error == 'IK001', 'mismatch of the request not reported')
        return state
    need(call.error != 'IK001', 'IK001 without a mismatch')

    need(not call.error or may_not_write(call), f'error {call.error}')
    if state.status in ('done', 'failed'):
        need(not call.error, 'an error instead of the outcome')
        return replay(call, state)
    if state.status == 'released':
        return next_attempt(call, state, False)

    branches = []
    heir = holder and holder == state.holder
    if state.status == 'abandoned' or state.lease <= call.end or heir:
        branches.append(lambda: next_attempt(call, state, True))
        if not call.error:
            branches.append(lambda: too_late(call, state))
    if state.status == 'in_progress' and not heir and not call.error:
        branches.append(lambda: running(call, state, mine))
    return any_of(*branches)


def reserve(call, state, mine, rival):
    branches = []
    if there(state, call):
        branches.append(lambda: reserve_there(call, state, mine))
    if gone(state, call) and call.error != 'IK001':
        branches.append(lambda: first_attempt(call, state))
    if rival and not call.error:
        branches.append(lambda: busy(call, state))
    return any_of(*branches)


def settled(call, state):
    """The state that a successful call makes of an open attempt"""
    if call.fn in OUTCOME:
        ttl = call.usecs('ttl', RESULT_TTL)
        result = call.args['result' if call.fn == 'complete' else 'error']
        return state._replace(status=OUTCOME[call.fn], result=result,
                              maybe=False, forget_min=call.start + ttl,
                              forget_max=call.end + ttl)
    if call.fn == 'release':
        return state._replace(status='released',
                              forget_min=call.start + RESULT_TTL,
                              forget_max=call.end + RESULT_TTL)
    if call.fn == 'abandon':
        if not call.wrote:
            need(state.status == 'abandoned' or state.lease <= call.end,
                 'a running lease was not ended')
            return state
        need(state.status == 'in_progress' and state.lease > call.start,
             'wrote, though the lease was over')
        return state._replace(status='abandoned',
                              forget_min=call.start + UNKNOWN_TTL,
                              forget_max=call.end + UNKNOWN_TTL)

    end = call.answer[0]
    ttl = call.usecs('ttl', RESERVATION_TTL)
    ran = state.status == 'in_progress'
    if not (ran and end == state.lease > call.start):
        within(end, call.start + ttl, call.end + ttl, 'end of lease')
    need(not ran or state.lease <= call.end or end >= state.lease,
         'lease was shortened')
    return state._replace(status='in_progress', lease=end,
                          forget_min=end + UNKNOWN_TTL,
                          forget_max=end + UNKNOWN_TTL)


def expected_there(call, state, mine):
    """The only right outcome of a settling call on a key that is there"""
    token = call.args.get('token', 0)
    lenient = call.fn in ('release', 'abandon')
    if lenient and not open_attempt(state):
        return False
    if token == 0 and not (mine and state.maker is call.txn):
        return 'IK003'
    if token != 0 and token != state.token:
        return False if lenient else 'IK002'
    if state.status == 'released':
        return 'IK003'
    if not open_attempt(state):
        result = call.args.get('result' if call.fn == 'complete' else 'error')
        same = OUTCOME.get(call.fn) == state.status and result == state.result
        return False if same else 'IK004'
    return True


def refused_at_once(call, expected, rivals):
    """What is right instead, while others have not committed what they wrote"""
    if expected == 'IK003' and call.fn in ('release', 'abandon') and rivals:
        return False
    if expected == 'IK002' and any(rival.outcome() == 'reserved' and
                                   rival.answer[2] == call.args['token']
                                   for rival in rivals or ()):
        return 'IK003'
    return expected


def settle_there(call, state, mine, rivals):
    outcome = call.outcome()
    expected = expected_there(call, state, mine)
    if expected is not True:
        need(outcome in (expected, refused_at_once(call, expected, rivals)),
             f'{outcome}, not {expected}')
        return state
    if may_not_write(call):
        return state
    need(outcome is True, f'{outcome}, not True')
    need(not call.txn.read_only or not call.wrote, 'wrote, though read only')
    return settled(call, state)


def settle(call, state, mine, rival):
    if call.args.get('token', 0) is None:
        need(call.error == '22004', 'a null token was accepted')
        return state
    absent = False if call.fn in ('release', 'abandon') else 'IK003'
    branches = []
    if there(state, call):
        branches.append(lambda: settle_there(call, state, mine, rival))
    if gone(state, call) and call.outcome() == absent:
        branches.append(lambda: state)
    return any_of(*branches)


def lookup(call, state, mine, rival):
    need(not call.error, f'error {call.error}')
    status, result, attempt, maybe, created, expires = call.answer
    if status is None:
        need(gone(state, call), 'no row')
        return state
    need(there(state, call), f'{status}, but the key was absent')
    need((attempt, maybe, created) ==
         (state.attempt, state.maybe, state.created),
         'figures are not those of the state')
    if status == 'in_progress':
        need(state.status == status and state.lease > call.start,
             'the lease was over')
        need(expires == state.lease, 'expires_at is not that of the lease')
        return state
    if status == 'expired':
        need(state.status == 'abandoned' or state.status == 'in_progress'
             and state.lease <= call.end, 'not expired')
    else:
        need(status == state.status, f'{status}, not {state.status}')
        need(result == state.result, 'another result')
    within(expires, state.forget_min, state.forget_max, 'expires_at')
    return state


def after(call, state, mine=True, rival=False):
    """The state after the call, or Wrong"""
    if call.error == '55P03' and call.txn.lock_timeout or \
            call.error == '40P01' and call.txn.several:
        return state
    judge = {'reserve': reserve, 'lookup': lookup}.get(call.fn, settle)
    return judge(call, state, mine, rival)


class Chain:
    """The committed states of one key, and all calls on it"""
    def __init__(self, calls, sweeps):
        self.calls = sorted(calls, key=lambda call: call.start)
        self.starts = [call.start for call in self.calls]
        self.writes = [call for call in self.calls if call.wrote]
        self.sweeps = sweeps
        self.longest = max((call.undo_end - call.start
                            for call in self.writes), default=0)
        self.write_starts = [call.start for call in self.writes]
        self.states, self.times, self.ends = [None], [0], [0]

    def build(self, complain):
        """Follow the committed writes, each from the state that it met"""
        kept = [call for call in self.writes if call.kept]
        kept.sort(key=lambda call: (call.txn.commit_time,
                                    call.txn.steps.index(call)))
        state = None
        for n, call in enumerate(kept):
            call.met = state
            try:
                state = after(call, state)
            except Wrong as wrong:
                complain(call, f'{wrong}; met {state}')
                return False
            if n + 1 == len(kept) or kept[n + 1].txn is not call.txn:
                self.states.append(state)
                self.times.append(call.txn.commit_time)
                self.ends.append(call.txn.end_end)
        return True

    def candidates(self, call):
        """The states that a call can have met, the latest first"""
        n = bisect.bisect_right(self.times, call.end) - 1
        while True:
            yield self.states[n]
            if n == 0 or self.ends[n] < call.start:
                return
            n -= 1

    def rivals(self, call):
        """Writes of others that were uncommitted during the call"""
        low = bisect.bisect_left(self.write_starts, call.start - self.longest)
        high = bisect.bisect_right(self.write_starts, call.end)
        return [other for other in self.writes[low:high]
                if other.undo_end >= call.start and other.txn is not call.txn]

    def swept(self, call):
        """Was a sweep at work during the call?"""
        return any(start <= call.end and end >= call.start
                   for start, end in self.sweeps)

    def inside(self, write):
        """Calls of others that ran while "write" was uncommitted"""
        n = bisect.bisect_right(self.starts, write.end)
        while n < len(self.calls) and self.starts[n] <= write.undo_start:
            call = self.calls[n]
            if call.end <= write.undo_start and call.txn is not write.txn:
                yield call
            n += 1


def settle_fates(txn):
    """When was each call of the transaction committed or rolled back?"""
    undone = None if txn.committed else (txn.end_start, txn.end_end)
    fate = undone
    for step in reversed(txn.steps):
        if isinstance(step, Call):
            # an error aborts at once, however late the client says so
            if step.error and len(txn.steps) > 1:
                fate = (step.start, (fate or (0, step.end))[1])
            step.kept = fate is None
            step.undo_start, step.undo_end = \
                fate or (txn.end_start, txn.end_end)
        elif step[0] == 'rollback':
            fate = step[1:]
        else:
            fate = undone


def walk(txn, chains, complain):
    """Judge the answers of one transaction in the light of its own writes"""
    own, saved = {}, {}
    for step in txn.steps:
        if not isinstance(step, Call):
            if step[0] == 'savepoint':
                saved = dict(own)
            else:
                own = dict(saved)
            continue
        chain = chains[step.key]
        mine = step.key in own
        if mine:
            states = [own[step.key]]
        elif step.wrote and step.kept:
            states = [step.met]
        else:
            states = chain.candidates(step)
        rival = not mine and (
            chain.rivals(step) or
            step.fn == 'reserve' and chain.swept(step))
        reasons = []
        for state in states:
            try:
                new = after(step, state, mine, rival)
            except Wrong as wrong:
                reasons.append(f'{wrong}; of {state}')
                continue
            if step.wrote or mine:
                own[step.key] = new
            break
        else:
            complain(step, '\n#   '.join(reasons))
            return


STATUSES = ('reserved', 'in_progress', 'done', 'failed', 'expired')


def shape(call, complain):
    """What holds for every answer, whatever the key's state"""
    if call.error:
        return
    try:
        need(call.rows == 1, f'{call.rows} rows')
        wrote = call.outcome() == 'reserved' or \
            call.fn in SETTLING and call.outcome() is True
        need(call.wrote == wrote or call.fn == 'abandon' and call.wrote == 0,
             f'wrote {call.wrote} rows')
        if call.fn == 'reserve':
            a = Reserved(*call.answer)
            need(a.status in STATUSES, f'status {a.status}')
            need((a.token is not None) == (a.status == 'reserved'), 'token')
            need(a.result is None or a.status in ('done', 'failed'), 'result')
            need(a.retry is None or a.status == 'in_progress', 'retry_after')
            need(a.status == 'in_progress' or
                 None not in (a.attempt, a.maybe, a.created, a.expires),
                 'missing figures')
        elif call.fn in SETTLING:
            need(call.answer[0] is not None, 'null')
    except Wrong as wrong:
        complain(call, str(wrong))


def refusal(call):
    """An answer that is certain, whatever becomes of a rival's write"""
    if call.fn in ('release', 'abandon') and call.outcome() is False:
        return True
    return call.fn in SETTLING and call.error in ('IK002', 'IK003')


DOCUMENTED = {'IK001', 'IK002', 'IK003', 'IK004', '22004', '25006', '55P03',
              '40P01'}


def variety(calls, states):
    """Which answers of the contract did the mix not meet?"""
    missing = set()
    met = {(call.fn, call.outcome()) for call in calls}
    for fn, outcomes in {
            'reserve': STATUSES + ('IK001', '25006'),
            'complete': (True, False, 'IK002', 'IK003', 'IK004', '22004'),
            'fail': (True, 'IK002', 'IK003', 'IK004'),
            'release': (True, False, 'IK003'),
            'abandon': (True, False, 'IK003'),
            'extend': (True, 'IK002', 'IK003', 'IK004'),
            'lookup': (None, 'in_progress', 'done', 'failed', 'released',
                       'expired')}.items():
        missing |= {(fn, outcome) for outcome in outcomes} - met
    if not any(state and state.attempt > 2 and state.maybe
               for state in states):
        missing.add('repeated takeover')
    return missing


class Report:
    """Collects complaints under the check that they belong to"""
    def __init__(self):
        self.wrong = []

    def complain(self, call, text):
        self.wrong.append(f'{call}\n#   {text}')

    def check(self, name, wrong=None):
        wrong, self.wrong = self.wrong + list(wrong or []), []
        print('not ok' if wrong else 'ok', '-', name)
        for line in wrong[:5]:
            print('#', line)
        if len(wrong) > 5:
            print(f'# and {len(wrong) - 5} more')


def side_table(conn, report, calls):
    """What the database itself has recorded in the same transactions"""
    report.check('no attempt of a key was won twice', conn.execute('''
        SELECT scope, key, created_at, attempt, count(*) FROM win
        GROUP BY 1, 2, 3, 4 HAVING count(*) > 1''').fetchall())
    report.check('no token was given twice', conn.execute('''
        SELECT token, count(*) FROM win
        GROUP BY 1 HAVING count(*) > 1''').fetchall())
    report.check('the tokens of a key rise in the order of commits',
                 conn.execute('''
        SELECT * FROM (
            SELECT *, lag(token) OVER w AS token_before,
                lag(created_at) OVER w AS created_before
            FROM win WINDOW w AS (
                PARTITION BY scope, key
                ORDER BY pg_xact_commit_timestamp(xid::xid), token)) AS pairs
        WHERE token <= token_before OR created_at < created_before
        ''').fetchall())

    wins = {row[0] for row in conn.execute('SELECT token FROM win')}
    told = [call for call in calls if call.outcome() == 'reserved']
    report.check('who was told "reserved", and committed, has won',
                 wins ^ {call.answer[2] for call in told if call.kept})
    last, = conn.execute('''
        SELECT last_value FROM idempotency_keys_token_seq''').fetchone()
    report.check('each win has used one token, every other call none',
                 [] if last == len(told) else [(last, len(told))])


def final_rows(conn, report, keys, chains):
    """Does the table hold what the last commits have made of it?"""
    rows = {row[:2]: row[2:] for row in conn.execute('''
        SELECT scope, key, token, attempt, maybe_ran, us(created_at),
            result::text FROM idempotency_keys''')}
    for k, chain in enumerate(chains):
        row, state = rows.get(keys[k]), chain.states[-1]
        if row and (state is None or row != (
                state.token, state.attempt, state.maybe, state.created,
                state.result)):
            report.wrong.append(f'{row} instead of {state}')
    report.check('the rows are those that the last commits have left')


def report(conn, keys, txns, sweeps):
    for txn in txns:
        settle_fates(txn)
    calls = [step for txn in txns for step in txn.steps
             if isinstance(step, Call)]
    report = Report()
    counts = collections.Counter(
        (call.fn, str(call.outcome())) for call in calls)
    print('#', len(calls), 'calls:', ', '.join(
        f'{fn} {outcome} {n}' for (fn, outcome), n in sorted(counts.items())))

    for call in calls:
        shape(call, report.complain)
    report.check('every answer has the shape of the contract')
    report.check('no error is undocumented',
                 [call for call in calls
                  if call.error and call.error not in DOCUMENTED])

    by_key = [[] for _ in keys]
    for call in calls:
        by_key[call.key].append(call)
    chains = [Chain(some, sweeps) for some in by_key]
    whole = all([chain.build(report.complain) for chain in chains])
    report.check('each write follows from the state that it met')

    if whole:
        for txn in txns:
            walk(txn, chains, report.complain)
        report.check('every answer was true at a moment of its call')
        final_rows(conn, report, keys, chains)

    for chain in chains:
        for write in chain.writes:
            for call in chain.inside(write):
                fine = call.outcome() in (
                    'in_progress', 'done', 'failed', 'IK001') or \
                    call.fn == 'lookup' or call.txn.read_only or \
                    call.error in ('55P03', '40P01', '22004') or \
                    refusal(call)
                if not fine:
                    report.complain(call, f'while uncommitted: {write}')
    report.check('nobody gets past an uncommitted write')

    side_table(conn, report, calls)
    report.check('the mix has met every answer', variety(
        calls, [state for chain in chains for state in chain.states]))
