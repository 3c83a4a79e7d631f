-- The sweep called by hand: what it takes and what it leaves.  Times are far
-- from now either way.

TRUNCATE idempotency_keys;
CREATE FUNCTION add(k text, st text, ago interval, memory text DEFAULT NULL)
RETURNS void LANGUAGE sql AS $$
	INSERT INTO idempotency_keys (key, status, attempt, maybe_ran, token, owner,
		created_at, reserved_at, completed_at, expires_at, result)
	VALUES (k, st, 2, true, nextval('idempotency_keys_token_seq'), current_user,
		now() - interval '90 days', now() - interval '60 days',
		CASE WHEN st IN ('done', 'failed') THEN now() - interval '50 days' END,
		coalesce(memory::timestamptz, now() - ago), '{"a": 1}');
$$;

-- one row of each state on either side of its time
SELECT add('running', 'in_progress', '-1 hour'),
	add('lapsed', 'in_progress', '1 hour'),
	add('lapsed long ago', 'in_progress', '719 hours'),
	add('lapsed too long ago', 'in_progress', '721 hours'),
	add('never lapses', 'in_progress', NULL, 'infinity'),
	add('expired', 'expired', '-24 hours'),
	add('expired, past', 'expired', '24 hours'),
	add('done', 'done', '-24 hours'),
	add('done, past', 'done', '24 hours'),
	add('done, for ever', 'done', NULL, 'infinity'),
	add('failed', 'failed', '-24 hours'),
	add('failed, past', 'failed', '24 hours'),
	add('released', 'released', '-24 hours'),
	add('released, past', 'released', '24 hours');

-- what callers are told does not depend on whether the sweep has been there
CREATE TABLE told AS
	SELECT k, l.status, l.attempt, l.maybe_ran, l.expires_at, l.result
	FROM unnest(ARRAY(SELECT key FROM idempotency_keys)) k
	LEFT JOIN idem_lookup(k) l ON true;

SELECT * FROM idem_sweep();
SELECT key, status, attempt, maybe_ran, result,
	CASE WHEN expires_at = 'infinity' THEN 'never'
		ELSE round(extract(epoch FROM expires_at - now()) / 3600) || ' h' END AS left
FROM idempotency_keys ORDER BY key;

SELECT count(*) AS different FROM (
	TABLE told EXCEPT
	SELECT k, l.status, l.attempt, l.maybe_ran, l.expires_at, l.result
	FROM told LEFT JOIN idem_lookup(k) l ON true) d;

-- nothing more to do
SELECT * FROM idem_sweep();

-- a lapsed lease is never forgotten if the caller's setting says so
SET idem_tool.unknown_ttl = -1;
SELECT add('unknown for ever', 'in_progress', '20 years');
SELECT * FROM idem_sweep();
SELECT status, expires_at FROM idempotency_keys WHERE key = 'unknown for ever';
RESET idem_tool.unknown_ttl;

-- an empty table
DELETE FROM idempotency_keys;
VACUUM idempotency_keys;
SELECT * FROM idem_sweep();

-- its transactions are its own: it neither sees ours nor goes with them
BEGIN;
SELECT add('uncommitted', 'done', '24 hours');
SELECT expired, deleted FROM idem_sweep();
ROLLBACK;
SELECT add('committed', 'done', '24 hours');
BEGIN;
SELECT expired, deleted FROM idem_sweep();
ROLLBACK;
SELECT count(*) FROM idempotency_keys;

-- rows that somebody has are left for later
SELECT add('locked', 'done', '24 hours'), add('free', 'done', '24 hours');
BEGIN;
SELECT key FROM idempotency_keys WHERE key = 'locked' FOR UPDATE;
SELECT expired, deleted FROM idem_sweep();
COMMIT;
SELECT expired, deleted FROM idem_sweep();

-- a foreign key, a trigger that raises and one that suppresses stop only theirs
SELECT add('referred to', 'done', '24 hours'), add('raises', 'done', '24 hours'),
	add('suppressed', 'done', '24 hours'), add('suppressed lapse', 'in_progress', '1 hour'),
	add('nobody objects', 'done', '24 hours'), add('nobody objects either', 'in_progress', '1 hour');
CREATE TABLE charge (scope text COLLATE "C", key text COLLATE "C",
	FOREIGN KEY (scope, key) REFERENCES idempotency_keys (scope, key) DEFERRABLE INITIALLY DEFERRED);
INSERT INTO charge VALUES ('', 'referred to');
CREATE FUNCTION object() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF OLD.key = 'raises' THEN
		RAISE EXCEPTION 'not this one';
	ELSIF OLD.key LIKE 'suppressed%' THEN
		RETURN NULL;
	END IF;
	RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER object BEFORE DELETE OR UPDATE ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION object();
SELECT expired, deleted FROM idem_sweep();
SELECT key, status FROM idempotency_keys ORDER BY key;
DROP TABLE charge;
DROP TRIGGER object ON idempotency_keys;
SELECT expired, deleted FROM idem_sweep();

-- triggers see every row, statement triggers every statement; names in their
-- functions are looked up in pg_catalog only
CREATE TABLE fired (what text);
GRANT INSERT ON fired TO pg_database_owner;
CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.fired VALUES (concat_ws(' ', TG_WHEN, TG_OP, TG_LEVEL));
	RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER b BEFORE DELETE OR UPDATE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION record();
CREATE TRIGGER a AFTER DELETE OR UPDATE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION record();
CREATE TRIGGER s AFTER DELETE OR UPDATE ON idempotency_keys EXECUTE FUNCTION record();
SELECT add('one', 'done', '24 hours'), add('two', 'done', '24 hours'), add('three', 'in_progress', '1 hour');
SELECT expired, deleted FROM idem_sweep();
-- how many statements it takes is a matter of time
SELECT what, CASE WHEN what LIKE '%ROW' THEN count(*) END AS rows
FROM fired GROUP BY what ORDER BY what COLLATE "C";
DROP TRIGGER a ON idempotency_keys;
DROP TRIGGER b ON idempotency_keys;
DROP TRIGGER s ON idempotency_keys;

-- refused where it could not be done
BEGIN READ ONLY;
SELECT * FROM idem_sweep();
ROLLBACK;
BEGIN;
LOCK TABLE idempotency_keys IN ACCESS EXCLUSIVE MODE;
SELECT * FROM idem_sweep();
ROLLBACK;

-- not for everybody
CREATE ROLE regress_idem_sweep;
SET ROLE regress_idem_sweep;
SELECT * FROM idem_sweep();
SELECT idem_start_worker();
TABLE idem_stats;
SET idem_tool.worker = off;
RESET ROLE;
SELECT idem_grant('regress_idem_sweep', 'operator');
SELECT add('an operator''s', 'done', '24 hours');
SET ROLE regress_idem_sweep;
SELECT expired, deleted FROM idem_sweep();
RESET ROLE;
SET idem_tool.naptime = 1;
SET idem_tool.sweep_pages = 1;

DELETE FROM idempotency_keys;
DROP OWNED BY regress_idem_sweep;
DROP ROLE regress_idem_sweep;
DROP TABLE told, fired;
DROP FUNCTION add, object, record;

-- records of the audit go after idem_tool.audit_ttl, others stay; a round gives
-- that up after a second, so that a slow machine may need some
INSERT INTO idem_audit (at, role, session_role, action, scope, key, old_status,
	new_status)
SELECT clock_timestamp() - days * interval '1 day', current_user, session_user,
	'resolve', '', 'old', 'expired', 'done'
FROM unnest(ARRAY[92, 91, 89]) AS days;
DO $$
BEGIN
	FOR i IN 1..100 LOOP
		PERFORM idem_sweep();
		EXIT WHEN (SELECT count(*) FROM idem_audit WHERE key = 'old') < 3;
	END LOOP;
END $$;
SELECT count(*) FROM idem_audit WHERE key = 'old';
