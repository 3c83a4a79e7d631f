--
-- Triggers of an administrator's: fired as under INSERT and UPDATE, once for
-- each write, never on a replay; what they store is what is answered.
--
\pset format unaligned
\pset null '(null)'
CREATE EXTENSION amcheck;

CREATE TABLE fired (nr int GENERATED ALWAYS AS IDENTITY, what text);
-- what has fired since the last look
CREATE FUNCTION fired() RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY SELECT what FROM fired ORDER BY nr;
	TRUNCATE fired;
END $$;

CREATE FUNCTION note_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO fired (what)
	SELECT concat_ws(' ', TG_NAME, TG_WHEN, TG_OP, TG_LEVEL, TG_ARGV[0],
					 CASE WHEN TG_OP = 'UPDATE'
					 THEN concat(OLD.status, ' ', OLD.attempt, ' ->') END,
					 concat(NEW.key, ' ', NEW.status, ' ', NEW.attempt));
	RETURN NEW;
END $$;
CREATE FUNCTION note_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO fired (what) SELECT concat_ws(' ', TG_NAME, TG_WHEN, TG_OP,
			TG_LEVEL);
	RETURN NULL;
END $$;
CREATE FUNCTION note_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO fired (what)
	SELECT concat_ws(' ', TG_NAME, TG_WHEN, TG_OP, TG_LEVEL, 'new:',
					 string_agg(concat(key, ' ', status, ' ', attempt), ','))
	FROM new_rows;
	RETURN NULL;
END $$;
CREATE FUNCTION note_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO fired (what)
	SELECT concat_ws(' ', TG_NAME, TG_WHEN, TG_OP, TG_LEVEL,
		'old:', (SELECT string_agg(concat(key, ' ', status, ' ', attempt),
								   ',') FROM old_rows),
		'new:', (SELECT string_agg(concat(key, ' ', status, ' ', attempt),
								   ',') FROM new_rows));
	RETURN NULL;
END $$;

CREATE TRIGGER a_row BEFORE INSERT OR UPDATE ON idempotency_keys FOR EACH ROW
	EXECUTE FUNCTION note_row('arg');
CREATE TRIGGER b_row AFTER INSERT OR UPDATE ON idempotency_keys FOR EACH ROW
	EXECUTE FUNCTION note_row();
CREATE TRIGGER c_statement BEFORE INSERT OR UPDATE ON idempotency_keys
	FOR EACH STATEMENT EXECUTE FUNCTION note_statement();
CREATE TRIGGER d_statement AFTER INSERT OR UPDATE ON idempotency_keys
	FOR EACH STATEMENT EXECUTE FUNCTION note_statement();
CREATE TRIGGER e_insert AFTER INSERT ON idempotency_keys
	REFERENCING NEW TABLE AS new_rows
	FOR EACH STATEMENT EXECUTE FUNCTION note_insert();
CREATE TRIGGER f_update AFTER UPDATE ON idempotency_keys
	REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
	FOR EACH STATEMENT EXECUTE FUNCTION note_update();
CREATE TRIGGER g_never AFTER DELETE OR TRUNCATE ON idempotency_keys
	FOR EACH STATEMENT EXECUTE FUNCTION note_statement();

CREATE PROCEDURE drop_triggers() LANGUAGE plpgsql AS $$
DECLARE
	trigger name;
BEGIN
	FOR trigger IN SELECT tgname FROM pg_trigger
				   WHERE tgrelid = 'idempotency_keys'::regclass
				   AND NOT tgisinternal LOOP
		EXECUTE format('DROP TRIGGER %I ON idempotency_keys', trigger);
	END LOOP;
END $$;

--
-- Each write
--
SELECT status, token FROM idem_reserve('k') \gset
SELECT fired();
SELECT idem_extend('k', '1 hour', :token) IS NOT NULL AS extended;
SELECT fired();
SELECT idem_release('k', :token);
SELECT fired();
SELECT status, token FROM idem_reserve('k') \gset
SELECT fired();
SELECT idem_abandon('k', :token);
SELECT fired();
SELECT status, token FROM idem_reserve('k') \gset
SELECT fired();
SELECT idem_complete('k', '1', :token);
SELECT fired();
SELECT make_state('f', 'in_progress') AS token \gset
SELECT count(*) FROM fired();
SELECT idem_fail('f', '1', :token);
SELECT fired();
-- over a row past its memory: an update, as the row is there
ALTER TABLE idempotency_keys DISABLE TRIGGER USER;
SELECT let_pass('f');
ALTER TABLE idempotency_keys ENABLE TRIGGER USER;
SELECT status, attempt FROM idem_reserve('f');
SELECT fired();
-- several in one statement are several
SELECT key, status FROM unnest(ARRAY['s1', 's2']) AS key, idem_reserve(key);
SELECT fired();
SELECT key, (idem_reserve(key)).status, (idem_reserve(key)).token > 0 AS token
FROM unnest(ARRAY['s3']) AS key;
SELECT fired();

-- nothing on a replay, a rival, a refusal, a false
SELECT status FROM idem_reserve('k');
SELECT status FROM idem_reserve('f');
SELECT status FROM idem_reserve('s1', wait => '10 milliseconds');
SELECT status FROM idem_lookup('k');
SELECT idem_complete('k', '1', token_of('k')),
	   idem_release('k', token_of('k')), idem_abandon('k', token_of('k'));
SELECT outcome_of($$SELECT idem_complete('k', '2', token_of('k'))$$),
	   outcome_of($$SELECT idem_complete('s1', '2', 1)$$),
	   outcome_of($$SELECT idem_complete('s1')$$);
SELECT fired();

-- rolled back with its write
BEGIN;
SELECT status FROM idem_reserve('rolled back');
SELECT count(*) FROM fired;
ROLLBACK;
SELECT fired();

-- disabled ones do not fire, replica ones only there
ALTER TABLE idempotency_keys DISABLE TRIGGER USER,
	ENABLE REPLICA TRIGGER b_row, ENABLE ALWAYS TRIGGER d_statement;
SELECT status FROM idem_reserve('modes');
SELECT fired();
SET session_replication_role = replica;
SELECT idem_release('modes', token_of('modes'));
SELECT fired();
RESET session_replication_role;
CALL drop_triggers();

--
-- By column, and with conditions
--
CREATE TRIGGER of_status AFTER UPDATE OF status ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION note_row();
CREATE TRIGGER of_result BEFORE UPDATE OF result ON idempotency_keys
	FOR EACH STATEMENT EXECUTE FUNCTION note_statement();
CREATE TRIGGER of_key AFTER UPDATE OF scope, key ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION note_row();
CREATE TRIGGER of_created BEFORE UPDATE OF created_at ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION note_row();
CREATE TRIGGER when_done AFTER UPDATE ON idempotency_keys FOR EACH ROW
	WHEN (NEW.status = 'done' AND OLD.status <> 'done')
	EXECUTE FUNCTION note_row();
CREATE TRIGGER when_new BEFORE INSERT ON idempotency_keys FOR EACH ROW
	WHEN (NEW.attempt = 1 AND NEW.scope = 's') EXECUTE FUNCTION note_row();
CREATE TRIGGER when_changed AFTER UPDATE ON idempotency_keys FOR EACH ROW
	WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION note_row();
SELECT status FROM idem_reserve('w');
SELECT fired();
SELECT status FROM idem_reserve('w', scope => 's');
SELECT fired();
SELECT idem_complete('w', '1', token_of('w'));
SELECT fired();
SELECT idem_extend('w', '1 hour', token_of('w', 's'), 's')
	   IS NOT NULL AS extended;
SELECT fired();
-- a key that begins anew is first reserved anew
ALTER TABLE idempotency_keys DISABLE TRIGGER USER;
SELECT let_pass('w');
ALTER TABLE idempotency_keys ENABLE TRIGGER USER;
SELECT status FROM idem_reserve('w');
SELECT fired();
CALL drop_triggers();

--
-- A veto: 55000, nothing is told reserved, the row is as it was
--
TRUNCATE idempotency_keys;
CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql
	AS $$ BEGIN RETURN NULL; END $$;
CREATE TEMP TABLE states (nr int GENERATED ALWAYS AS IDENTITY, state text);
INSERT INTO states (state)
VALUES ('in_progress'), ('lapsed'), ('expired'), ('released'), ('done'),
	('failed'), ('forgotten');
SELECT count(make_state(state, CASE state WHEN 'forgotten' THEN 'done'
						ELSE state END)) FROM states;
SELECT let_pass('forgotten');
CREATE TEMP TABLE versions AS SELECT xmin::text AS x, ctid::text AS c, *
FROM idempotency_keys;
CREATE TRIGGER veto BEFORE INSERT OR UPDATE ON idempotency_keys FOR EACH ROW
	EXECUTE FUNCTION veto();
SELECT error_of($$SELECT idem_reserve('new')$$);
SELECT error_of(format('SELECT idem_complete(%L, token => %s)', 'in_progress',
					   token_of('in_progress')));
SELECT state, outcome_of(format('SELECT status FROM idem_reserve(%L)', state))
	   AS reserve
FROM states ORDER BY nr;
SELECT state, function,
	   outcome_of(format('SELECT idem_%s(%L, token => %s)', function, state,
						 token_of(state)))
FROM states,
	 unnest(ARRAY['complete', 'fail', 'release', 'abandon',
				  'extend']) WITH ORDINALITY AS f (function, function_nr)
WHERE state IN ('in_progress', 'lapsed', 'expired') ORDER BY nr, function_nr;
SELECT count(*)
FROM (TABLE versions EXCEPT SELECT xmin::text AS x, ctid::text AS c, *
	  FROM idempotency_keys) AS changed;
SELECT count(*) FROM idem_lookup('new');
-- and goes on in the transaction, after a savepoint
BEGIN;
SAVEPOINT s;
SELECT status FROM idem_reserve('new');
ROLLBACK TO s;
SELECT status, result FROM idem_reserve('done');
COMMIT;
CALL drop_triggers();
-- an error of its own is its own
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN RAISE EXCEPTION 'not today' USING ERRCODE = 'TG001', DETAIL = TG_OP; END $$;
CREATE TRIGGER refuse AFTER INSERT OR UPDATE ON idempotency_keys FOR EACH ROW
	EXECUTE FUNCTION refuse();
SELECT error_of($$SELECT idem_reserve('new')$$);
SELECT error_of(format('SELECT idem_complete(%L, token => %s)', 'in_progress',
					   token_of('in_progress')));
CALL drop_triggers();
CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON idempotency_keys
	FOR EACH STATEMENT EXECUTE FUNCTION refuse();
SELECT error_of($$SELECT idem_reserve('new')$$);
SELECT error_of(format('SELECT idem_extend(%L, token => %s)', 'in_progress',
					   token_of('in_progress')));
SELECT status FROM idem_reserve('done');
CALL drop_triggers();
SELECT count(*)
FROM (TABLE versions EXCEPT SELECT xmin::text AS x, ctid::text AS c, *
	  FROM idempotency_keys) AS changed;
SELECT count(*) FROM idem_lookup('new');
DROP FUNCTION refuse, veto;

--
-- A trigger that changes the row: the answer is what was stored
--
CREATE FUNCTION shorten() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.expires_at := least(NEW.expires_at,
							NEW.reserved_at + interval '1 minute');
	NEW.holder := 'by trigger';
	RETURN NEW;
END $$;
TRUNCATE idempotency_keys;
CREATE TRIGGER shorten BEFORE INSERT OR UPDATE ON idempotency_keys
	FOR EACH ROW
	WHEN (NEW.status = 'in_progress') EXECUTE FUNCTION shorten();
SELECT status, token, expires_at - created_at AS lease
FROM idem_reserve('short', '1 hour') \gset
SELECT :'status' AS status, :'lease' AS lease;
SELECT holder, expires_at - reserved_at AS lease FROM idempotency_keys;
SELECT idem_extend('short', '2 hours', :token) AS extended \gset
SELECT expires_at = :'extended' AS stored, expires_at - reserved_at AS lease
FROM idempotency_keys;
SELECT idem_release('short', :token);
SELECT attempt, expires_at FROM idem_reserve('short', '1 hour') \gset
SELECT :attempt AS attempt, expires_at = :'expires_at' AS stored,
	   expires_at - reserved_at AS lease
FROM idempotency_keys;
CALL drop_triggers();
DROP FUNCTION shorten;
-- whatever it is
CREATE FUNCTION outdate() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN NEW.expires_at := '2000-01-01'; RETURN NEW; END $$;
CREATE TRIGGER outdate BEFORE INSERT OR UPDATE ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION outdate();
SELECT status, attempt, maybe_ran, created_at IS NOT NULL AS created_at,
	   expires_at, retry_after
FROM idem_reserve('outdated');
SELECT status, attempt FROM idem_reserve('outdated');
CALL drop_triggers();
DROP FUNCTION outdate;
-- results as well
CREATE FUNCTION redact() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN NEW.result := NEW.result - 'card'; RETURN NEW; END $$;
CREATE TRIGGER redact BEFORE UPDATE ON idempotency_keys FOR EACH ROW
	WHEN (NEW.status = 'done') EXECUTE FUNCTION redact();
SELECT status, token FROM idem_reserve('redacted') \gset
SELECT idem_complete('redacted', '{"card": 1, "ok": true}', :token);
SELECT result FROM idem_reserve('redacted');
CALL drop_triggers();
DROP FUNCTION redact;

-- one that moves the row to another key leaves nothing under this one
CREATE FUNCTION rename() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN NEW.key := lower(NEW.key); RETURN NEW; END $$;
SELECT token FROM idem_reserve('Upper') \gset
CREATE TRIGGER rename BEFORE INSERT OR UPDATE ON idempotency_keys FOR EACH ROW
	EXECUTE FUNCTION rename();
SET statement_timeout = '10s';
SELECT outcome_of($$SELECT idem_reserve('UPPER')$$);
SELECT outcome_of($$SELECT idem_reserve('UPPER')$$);
SELECT outcome_of(format($$SELECT idem_complete('Upper', '1', %s)$$, :token));
RESET statement_timeout;
SELECT status FROM idem_reserve('lower');
CALL drop_triggers();
SELECT key FROM idempotency_keys WHERE lower(key) = 'upper';
DROP FUNCTION rename;

-- one that changes the status or the token leaves no reservation to tell of
CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_ARGV[0] = 'token' THEN
		NEW.token := NEW.token + 1;
	ELSE
		NEW.status := TG_ARGV[0];
	END IF;
	RETURN NEW;
END $$;
TRUNCATE idempotency_keys;
SELECT count(make_state(state, CASE state WHEN 'forgotten' THEN 'done'
						ELSE state END)) FROM states;
SELECT let_pass('forgotten');
TRUNCATE versions;
INSERT INTO versions SELECT xmin::text AS x, ctid::text AS c, *
FROM idempotency_keys;
CREATE FUNCTION all_meddled() RETURNS TABLE (call text, answer text)
	LANGUAGE sql AS $$
	SELECT call, outcome_of(replace(call, '$', token_of('in_progress')::text))
	FROM unnest(ARRAY[
		'SELECT status FROM idem_reserve(''new'')',
		'SELECT status FROM idem_reserve(''lapsed'')',
		'SELECT status FROM idem_reserve(''released'')',
		'SELECT status FROM idem_reserve(''forgotten'')',
		'SELECT idem_complete(''in_progress'', token => $)',
		'SELECT idem_fail(''in_progress'', token => $)',
		'SELECT idem_release(''in_progress'', $)',
		'SELECT idem_abandon(''in_progress'', $)',
		'SELECT idem_extend(''in_progress'', token => $)']) AS call
$$;
CREATE TRIGGER meddle BEFORE INSERT OR UPDATE ON idempotency_keys FOR EACH ROW
	EXECUTE FUNCTION meddle('token');
SELECT error_of($$SELECT idem_reserve('new')$$);
SELECT error_of(format('SELECT idem_complete(%L, token => %s)', 'in_progress',
					   token_of('in_progress')));
SELECT * FROM all_meddled();
CALL drop_triggers();
CREATE TRIGGER meddle BEFORE INSERT OR UPDATE ON idempotency_keys FOR EACH ROW
	WHEN (NEW.status = 'in_progress') EXECUTE FUNCTION meddle('done');
SELECT outcome_of('SELECT status FROM idem_reserve(''new'')'),
	   outcome_of('SELECT status FROM idem_reserve(''expired'')'),
	   outcome_of(format('SELECT idem_extend(%L, token => %s)', 'in_progress',
						 token_of('in_progress')));
CALL drop_triggers();
CREATE TRIGGER meddle BEFORE UPDATE ON idempotency_keys FOR EACH ROW
	WHEN (NEW.status <> 'in_progress') EXECUTE FUNCTION meddle('in_progress');
SELECT function,
	   outcome_of(format('SELECT idem_%s(%L, token => %s)', function,
						 'in_progress', token_of('in_progress')))
FROM unnest(ARRAY['complete', 'fail', 'release', 'abandon']) AS function;
CALL drop_triggers();
-- not even by a state that is none
CREATE TRIGGER meddle BEFORE INSERT OR UPDATE ON idempotency_keys FOR EACH ROW
	EXECUTE FUNCTION meddle('unheard of');
SELECT outcome_of('SELECT status FROM idem_reserve(''new'')');
CALL drop_triggers();
SELECT count(*)
FROM (TABLE versions EXCEPT SELECT xmin::text AS x, ctid::text AS c, *
	  FROM idempotency_keys) AS changed;
SELECT count(*) FROM idem_lookup('new');
DROP FUNCTION meddle, all_meddled;

--
-- Triggers that write, even to this table
--
TRUNCATE idempotency_keys;
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_reserve('audit ' || NEW.key);
	PERFORM idem_complete('audit ' || NEW.key, to_jsonb(NEW.status));
	RETURN NEW;
END $$;
CREATE TRIGGER audit AFTER INSERT ON idempotency_keys FOR EACH ROW
	WHEN (NEW.key NOT LIKE 'audit %') EXECUTE FUNCTION audit();
SELECT status, attempt FROM idem_reserve('nested');
SELECT key, status FROM idempotency_keys ORDER BY key;
SELECT idem_complete('nested', '1', token_of('nested'));
CALL drop_triggers();
CREATE TRIGGER audit BEFORE INSERT ON idempotency_keys FOR EACH ROW
	WHEN (NEW.key NOT LIKE 'audit %') EXECUTE FUNCTION audit();
SELECT status, attempt FROM idem_reserve('nested before');
SELECT key, status FROM idempotency_keys ORDER BY key;
CALL drop_triggers();
DROP FUNCTION audit;
-- the row itself, which is gone then: nobody is told that he has it
CREATE FUNCTION remove() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM public.idempotency_keys WHERE scope = NEW.scope AND key = NEW.key;
	RETURN NULL;
END $$;
CREATE TRIGGER remove AFTER INSERT OR UPDATE ON idempotency_keys FOR EACH ROW
	WHEN (NEW.key = 'nested') EXECUTE FUNCTION remove();
SELECT outcome_of($$SELECT idem_forget('nested')$$) AS forgotten;
DELETE FROM idempotency_keys WHERE key = 'nested';
SELECT outcome_of($$SELECT idem_reserve('nested')$$);
SELECT count(*) FROM idempotency_keys WHERE key = 'nested';
CALL drop_triggers();
DROP FUNCTION remove;
-- the row itself, behind the back of the update that is under way
CREATE FUNCTION self() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	UPDATE idempotency_keys SET holder = 'self' WHERE scope = NEW.scope
	AND key = NEW.key;
	RETURN NEW;
END $$;
CREATE TRIGGER self BEFORE UPDATE ON idempotency_keys FOR EACH ROW
	WHEN (NEW.holder IS DISTINCT FROM 'self') EXECUTE FUNCTION self();
SELECT status FROM idem_reserve('self');
SELECT outcome_of(format('SELECT idem_complete(%L, token => %s)', 'self',
						 token_of('self')));
SELECT status FROM idem_reserve('self');
CALL drop_triggers();
-- after it is in order
CREATE TRIGGER self AFTER INSERT OR UPDATE ON idempotency_keys FOR EACH ROW
	WHEN (NEW.holder IS DISTINCT FROM 'self') EXECUTE FUNCTION self();
SELECT status FROM idem_reserve('self 2');
SELECT status, holder FROM idem_lookup('self 2');
SELECT idem_complete('self 2', '1', token_of('self 2'));
BEGIN;
SELECT status FROM idem_reserve('self 3');
SELECT idem_complete('self 3', '1');
COMMIT;
SELECT status, holder FROM idem_lookup('self 3');
CALL drop_triggers();
DROP FUNCTION self;

--
-- Constraint triggers, deferred to the commit
--
TRUNCATE idempotency_keys;
TRUNCATE fired;
CREATE CONSTRAINT TRIGGER later AFTER INSERT OR UPDATE ON idempotency_keys
	DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION note_row();
BEGIN;
SELECT status FROM idem_reserve('deferred');
SELECT idem_complete('deferred', '1');
SELECT count(*) FROM fired;
COMMIT;
SELECT fired();
BEGIN;
SELECT status FROM idem_reserve('deferred 2');
SET CONSTRAINTS ALL IMMEDIATE;
SELECT fired();
SELECT idem_complete('deferred 2', '1');
SELECT fired();
COMMIT;
CALL drop_triggers();
-- one that fails takes everything with it
CREATE FUNCTION must_settle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF (SELECT status FROM idempotency_keys WHERE scope = NEW.scope
		AND key = NEW.key) = 'in_progress' THEN
		RAISE EXCEPTION 'key "%" was left open', NEW.key;
	END IF;
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER must_settle AFTER INSERT
	OR UPDATE ON idempotency_keys DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION must_settle();
BEGIN;
SELECT status FROM idem_reserve('open');
COMMIT;
SELECT count(*) FROM idem_lookup('open');
BEGIN;
SELECT status FROM idem_reserve('closed');
SELECT idem_complete('closed', '1');
COMMIT;
SELECT status FROM idem_reserve('closed');
CALL drop_triggers();
DROP FUNCTION must_settle;

-- triggers that come and go while the session goes on
SELECT status FROM idem_reserve('t1');
CREATE TRIGGER now AFTER INSERT ON idempotency_keys FOR EACH ROW
	EXECUTE FUNCTION note_row();
SELECT status FROM idem_reserve('t2');
SELECT fired();
CALL drop_triggers();
SELECT status FROM idem_reserve('t3');
SELECT fired();
BEGIN;
CREATE TRIGGER now AFTER INSERT ON idempotency_keys FOR EACH ROW
	EXECUTE FUNCTION note_row();
SELECT status FROM idem_reserve('t4');
SELECT count(*) FROM fired;
ROLLBACK;
SELECT status FROM idem_reserve('t4');
SELECT fired();

SELECT bt_index_parent_check('idempotency_keys_pkey', heapallindexed => true);
SELECT count(*) FROM verify_heapam('idempotency_keys');
TRUNCATE idempotency_keys;
DROP TABLE fired, states, versions;
DROP PROCEDURE drop_triggers;
DROP FUNCTION fired, note_row, note_statement, note_insert, note_update;
DROP EXTENSION amcheck;
