# Plain SQL moves the rows under the hands of the functions.
#
# An administrator's indexes keep every update from being heap-only, so each
# puts the row in another place with an index entry of its own.  Two sessions
# do nothing else, now and then by DELETE and INSERT, and a third one vacuums.
# The keys are of kinds whose right answers are known whatever the rivals do:
#
#	done	settled for good; each commit leaves the row there
#	held	in progress for good, likewise
#	mine	each used by one caller alone, who knows what comes next
#	gone	removed and put there by the rivals as well: anything but an error
#			from an index

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use Test::More;

my $seconds = $ENV{RIVALS_SECONDS} || 20;

my $node = new_node('rivals', conf => <<'END');
fsync = off
deadlock_timeout = 100ms
END
my $observer = session($node);

$observer->query('CREATE EXTENSION amcheck');
$observer->query(<<'END');
ALTER TABLE idempotency_keys SET (fillfactor = 100);
ALTER TABLE idempotency_keys ADD note int NOT NULL DEFAULT 0;
CREATE INDEX by_expiry ON idempotency_keys (expires_at);
CREATE INDEX by_note ON idempotency_keys (note);
CREATE INDEX by_result ON idempotency_keys ((result ->> 'n'))
	WHERE status = 'done';

CREATE TABLE wrong (what text);
CREATE TABLE committed (who text, calls bigint, writes bigint);

-- what the keys of the kinds "done" and "held" answer for ever
CREATE TABLE known (key text, token bigint, created_at timestamptz);
INSERT INTO known
SELECT key, token, created_at
FROM generate_series(1, 12) AS n,
	format(CASE WHEN n <= 8 THEN 'done %s' ELSE 'held %s' END, n) AS key,
	idem_reserve(key, '1 day', request => '{"n": 1}');
SELECT idem_complete(key, jsonb_build_object('n', key), token, '1 day')
FROM known WHERE key LIKE 'done %';

CREATE PROCEDURE check_that(fine boolean, what text, answer anyelement)
LANGUAGE plpgsql AS $$
BEGIN
	IF fine IS NOT TRUE THEN
		INSERT INTO wrong
		VALUES (what || ': ' || coalesce(answer::text, 'null'));
	END IF;
END $$;

-- the call must raise this error
CREATE PROCEDURE check_error(sqlstate text, what text, call text)
LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	BEGIN
		EXECUTE 'SELECT ' || call INTO answer;
	EXCEPTION WHEN OTHERS THEN
		answer := SQLSTATE;
	END;
	CALL check_that(answer = sqlstate, what, answer);
END $$;

CREATE PROCEDURE ask_done(k known) LANGUAGE plpgsql AS $$
DECLARE
	a record;
	b boolean;
	result jsonb := jsonb_build_object('n', k.key);
BEGIN
	CASE floor(random() * 12)
	WHEN 0, 1, 2 THEN
		SELECT * INTO a FROM idem_reserve(k.key, request => '{"n": 1}');
		CALL check_that(a.status = 'done' AND a.result = result
			AND a.token IS NULL AND a.attempt = 1
			AND a.created_at = k.created_at, 'reserve, done', a);
	WHEN 3, 4, 5, 6 THEN
		SELECT * INTO a FROM idem_lookup(k.key);
		CALL check_that(FOUND AND a.status = 'done' AND a.result = result,
			'lookup, done', a);
	WHEN 7 THEN
		b := idem_complete(k.key, result, k.token);
		CALL check_that(NOT b, 'complete again', b);
	WHEN 8 THEN
		b := idem_release(k.key, k.token) OR idem_abandon(k.key, k.token);
		CALL check_that(NOT b, 'release or abandon, done', b);
	WHEN 9 THEN
		CALL check_error('IK004', 'complete otherwise', format(
			'idem_complete(%L, ''{}'', %s)', k.key, k.token));
	WHEN 10 THEN
		CALL check_error('IK004', 'extend, done', format(
			'idem_extend(%L, token => %s)', k.key, k.token));
	ELSE
		CALL check_error('IK001', 'mismatch, done', format(
			'status FROM idem_reserve(%L, request => ''{}'')', k.key));
	END CASE;
END $$;

CREATE PROCEDURE ask_held(k known, INOUT writes bigint) LANGUAGE plpgsql AS $$
DECLARE
	a record;
	b boolean;
	t timestamptz;
BEGIN
	CASE floor(random() * 12)
	WHEN 0, 1, 2 THEN
		SELECT * INTO a FROM idem_reserve(k.key);
		CALL check_that(a.status = 'in_progress' AND a.token IS NULL
			AND a.attempt = 1 AND a.created_at = k.created_at
			AND a.retry_after > 80000, 'reserve, held', a);
	WHEN 3, 4, 5 THEN
		SELECT * INTO a FROM idem_lookup(k.key);
		CALL check_that(FOUND AND a.status = 'in_progress'
			AND a.created_at = k.created_at, 'lookup, held', a);
	WHEN 6, 7 THEN
		t := idem_extend(k.key, '1 day', k.token);
		CALL check_that(t > now() + '23 hours', 'extend, held', t);
		writes := writes + 1;
	WHEN 8 THEN
		b := idem_release(k.key, k.token - 1) OR idem_abandon(k.key, 1000000);
		CALL check_that(NOT b, 'release or abandon, held', b);
	WHEN 9 THEN
		CALL check_error('IK002', 'wrong token', format(
			'idem_complete(%L, NULL, %s)', k.key, k.token + 1));
	WHEN 10 THEN
		CALL check_error('IK003', 'no token', format(
			'idem_fail(%L)', k.key));
	ELSE
		CALL check_error('IK001', 'mismatch, held', format(
			'status FROM idem_reserve(%L, request => ''{}'')', k.key));
	END CASE;
END $$;

-- one life of a key that nobody else reserves; "last" is its latest answer
CREATE PROCEDURE live(k text, INOUT last idem_answer, INOUT released boolean,
	INOUT writes bigint) LANGUAGE plpgsql AS $$
DECLARE
	a idem_answer;
	b boolean;
	t timestamptz;
	two_phases boolean := random() < 0.5;
	released_before boolean := released;
	writes_before bigint := writes;
BEGIN
	-- rivals hold the row for moments only
	SELECT * INTO a FROM idem_reserve(k, wait => '10 s');
	CALL check_that(a.status = 'reserved'
		AND a.attempt = CASE WHEN released THEN last.attempt + 1 ELSE 1 END
		AND (a.created_at IS NOT DISTINCT FROM last.created_at) = released
		AND (last IS NULL OR a.token > last.token), 'reserve, mine', a);
	writes := writes + 1;
	IF two_phases THEN
		COMMIT;
	END IF;

	IF random() < 0.3 THEN
		t := idem_extend(k, '1 hour', a.token);
		CALL check_that(t > now(), 'extend, mine', t);
		writes := writes + 1;
	END IF;
	released := random() < 0.5;
	IF released THEN
		b := idem_release(k, a.token);
	ELSIF NOT two_phases THEN
		b := idem_complete(k, '{"n": 1}', ttl => '1 us');
	ELSIF random() < 0.5 THEN
		b := idem_complete(k, NULL, a.token, '1 us');
	ELSE
		b := idem_fail(k, '{"n": 2}', a.token, '1 us');
	END IF;
	CALL check_that(b, 'settle, mine', b);
	writes := writes + 1;
	IF NOT two_phases AND random() < 0.2 THEN
		ROLLBACK;
		released := released_before;
		writes := writes_before;
	ELSE
		last := a;
	END IF;
END $$;

CREATE PROCEDURE ask_gone(k text, INOUT writes bigint) LANGUAGE plpgsql AS $$
DECLARE
	a record;
	b boolean;
BEGIN
	SELECT * INTO STRICT a FROM idem_reserve(k);
	CALL check_that(a.status IN ('reserved', 'in_progress', 'done')
		AND (a.token IS NOT NULL) = (a.status = 'reserved'),
		'reserve, gone', a);
	IF a.status <> 'reserved' THEN
		RETURN;
	END IF;
	writes := writes + 1;
	IF random() < 0.5 THEN
		COMMIT;
	END IF;
	BEGIN
		IF random() < 0.5 THEN
			b := idem_release(k, a.token);
		ELSE
			b := idem_complete(k, '{"n": 3}', a.token, '1 ms');
		END IF;
		writes := writes + b::int;
	EXCEPTION WHEN SQLSTATE 'IK002' OR SQLSTATE 'IK003' THEN
		NULL;
	END;
END $$;

CREATE PROCEDURE caller(me int, seconds float8) LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + seconds * interval '1 s';
	k known;
	calls bigint := 0;
	writes bigint := 0;
	last idem_answer;
	released boolean := false;
	levels text[] := '{read committed, repeatable read, serializable}';
BEGIN
	WHILE clock_timestamp() < deadline LOOP
		PERFORM set_config('default_transaction_isolation',
			levels[1 + floor(random() * 3)], false);
		COMMIT;
		SELECT * INTO k FROM known OFFSET floor(random() * 12) LIMIT 1;
		CASE floor(random() * 10)
		WHEN 0, 1 THEN
			CALL live(format('mine %s', me), last, released, writes);
		WHEN 2, 3 THEN
			CALL ask_gone(format('gone %s', floor(random() * 3)), writes);
		ELSE
			IF k.key LIKE 'done %' THEN
				CALL ask_done(k);
			ELSE
				CALL ask_held(k, writes);
			END IF;
		END CASE;
		calls := calls + 1;
	END LOOP;
	INSERT INTO committed VALUES (format('caller %s', me), calls, writes);
END $$;

CREATE PROCEDURE rival(seconds float8) LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + seconds * interval '1 s';
	keys text[] := ARRAY(SELECT key FROM known) ||
		ARRAY(SELECT 'mine ' || n FROM generate_series(1, 6) AS n);
	gone text;
	k text;
	n bigint;
	calls bigint := 0;
	writes bigint := 0;
BEGIN
	WHILE clock_timestamp() < deadline LOOP
		k := keys[1 + floor(random() * array_length(keys, 1))];
		gone := 'gone ' || floor(random() * 3);
		CASE floor(random() * 20)
		WHEN 0, 1 THEN
			-- in one statement: the row is never absent
			WITH old AS (
				DELETE FROM idempotency_keys WHERE key = k RETURNING *)
			INSERT INTO idempotency_keys SELECT * FROM old;
			GET DIAGNOSTICS n = ROW_COUNT;
			n := n * 2;
		WHEN 2, 3, 4, 5 THEN
			DELETE FROM idempotency_keys WHERE key = gone;
			GET DIAGNOSTICS n = ROW_COUNT;
		WHEN 6, 7, 8, 9 THEN
			INSERT INTO idempotency_keys (key, status, attempt, maybe_ran,
				token, owner, created_at, reserved_at, expires_at)
			SELECT gone, 'done', 1, false, 1, current_user, t, t,
				t + interval '1 s' FROM clock_timestamp() AS t
			ON CONFLICT DO NOTHING;
			GET DIAGNOSTICS n = ROW_COUNT;
		WHEN 10 THEN
			UPDATE idempotency_keys SET note = note + 1 WHERE key = gone;
			GET DIAGNOSTICS n = ROW_COUNT;
		ELSE
			UPDATE idempotency_keys SET note = note + 1 WHERE key = k;
			GET DIAGNOSTICS n = ROW_COUNT;
		END CASE;
		IF random() < 0.1 THEN
			ROLLBACK;
		ELSE
			writes := writes + n;
			COMMIT;
		END IF;
		calls := calls + 1;
	END LOOP;
	INSERT INTO committed VALUES ('rival', calls, writes);
END $$;
END

# What went wrong in these sessions
sub errors
{
	return join("\n", grep { $_ } map {
		join(' ', grep { $_ } @{ $_->answer }{qw(sqlstate message detail)})
	} @_);
}

# All at once for a while
sub rivalry
{
	my ($seconds, $name) = @_;
	my @callers = map { session($node) } 1 .. 6;
	my @rivals = map { session($node) } 1 .. 2;
	my $number = 0;

	$observer->query('TRUNCATE wrong, committed');
	$_->send("CALL rival($seconds)") foreach @rivals;
	$_->send('CALL caller(' . ++$number . ", $seconds)") foreach @callers;

	my $vacuumer = session($node);
	until ($callers[0]->answered)
	{
		$vacuumer->query('VACUUM idempotency_keys');
		select(undef, undef, undef, 0.05);
	}
	is(errors(@callers), '', "$name: callers meet no error");
	is(errors(@rivals), '', "$name: rivals meet no error");
	is($observer->query('SELECT what FROM wrong LIMIT 5'),
		'', "$name: every answer is right");
	note $observer->query(<<'END');
SELECT left(who, 6), sum(calls), sum(writes) FROM committed GROUP BY 1
END
	is($observer->query(<<'END'), '', "$name: indexes have every row");
SELECT string_agg(bt_index_check(indexrelid, true)::text, '')
FROM pg_index WHERE indrelid = 'idempotency_keys'::regclass
END
	is($observer->query("SELECT * FROM verify_heapam('idempotency_keys')"),
		'', "$name: table is in order");
	$_->drop foreach @callers, @rivals, $vacuumer;
	return;
}

rivalry($seconds, 'indexes');

# Once more with triggers of all kinds and foreign keys to and from the table
$observer->query("DELETE FROM idempotency_keys WHERE key LIKE 'mine %'");
$observer->query(<<'END');
CREATE TABLE audit (op text, key text);
CREATE TABLE audit_statements (op text, n bigint);
CREATE TABLE scopes (scope text PRIMARY KEY);
INSERT INTO scopes VALUES ('');
ALTER TABLE idempotency_keys ADD FOREIGN KEY (scope) REFERENCES scopes;
CREATE TABLE charge (scope text DEFAULT '', key text,
	FOREIGN KEY (scope, key) REFERENCES idempotency_keys (scope, key));
INSERT INTO charge SELECT '', key FROM known;

CREATE FUNCTION before_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.note := NEW.note + 1;
	RETURN NEW;
END $$;
CREATE TRIGGER before_row BEFORE INSERT OR UPDATE ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION before_row();

CREATE FUNCTION after_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO audit VALUES (TG_OP, coalesce(NEW.key, OLD.key));
	RETURN NULL;
END $$;
CREATE TRIGGER after_row AFTER INSERT OR UPDATE OR DELETE ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION after_row();

CREATE FUNCTION after_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO audit_statements SELECT TG_OP, count(*) FROM changed;
	RETURN NULL;
END $$;
CREATE TRIGGER after_insert AFTER INSERT ON idempotency_keys
	REFERENCING NEW TABLE AS changed
	FOR EACH STATEMENT EXECUTE FUNCTION after_statement();
CREATE TRIGGER after_update AFTER UPDATE ON idempotency_keys
	REFERENCING NEW TABLE AS changed
	FOR EACH STATEMENT EXECUTE FUNCTION after_statement();
CREATE TRIGGER after_delete AFTER DELETE ON idempotency_keys
	REFERENCING OLD TABLE AS changed
	FOR EACH STATEMENT EXECUTE FUNCTION after_statement();
END

rivalry($seconds * 0.6, 'triggers');
is($observer->query(<<'END'), '0', 'triggers: each committed write fires');
SELECT count(*) - (SELECT sum(writes) FROM committed) FROM audit
END
is($observer->query(<<'END'), '', 'triggers: transition tables have its row');
SELECT op, count(*), s
FROM audit FULL JOIN (
	SELECT op, sum(n) AS s FROM audit_statements GROUP BY op) AS t USING (op)
GROUP BY op, s HAVING count(*) IS DISTINCT FROM s
END

$node->stop;
done_testing();
