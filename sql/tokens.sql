--
-- Who may settle: the token, the transaction that reserved, or with
-- idem_tool.session_tokens the session.
--
\pset format unaligned
\pset null '(null)'

-- all five functions with one token; each undone, so that the next one finds
-- the same
CREATE FUNCTION each_with(key text, token text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	call text;
	outcome text;
	outcomes text[];
BEGIN
	FOREACH call IN ARRAY ARRAY['idem_complete(%L%s)', 'idem_fail(%L%s)',
								'idem_release(%L%s)', 'idem_abandon(%L%s)',
								'idem_extend(%L%s) IS NOT NULL'] LOOP
		BEGIN
			EXECUTE 'SELECT '
			|| format(call, key, ', token => ' || token) INTO outcome;
			RAISE EXCEPTION USING ERRCODE = 'UNDO1';
		EXCEPTION
			WHEN SQLSTATE 'UNDO1' THEN NULL;
			WHEN OTHERS THEN outcome := SQLSTATE;
		END;
		outcomes := outcomes || outcome;
	END LOOP;
	RETURN outcomes;
END $$;

--
-- With a token: it must be the current one
--
SELECT token AS first FROM idem_reserve('k') \gset
SELECT token AS other FROM idem_reserve('other') \gset
SELECT version_of('k') AS version_before \gset
SELECT given, each_with('k', token)
FROM (VALUES ('current', :'first'), ('another key''s', :'other'),
	  ('next', :'first' || '+1'),
			 ('previous', :'first' || '-1'), ('negative', '-' || :'first'),
			 ('highest', '9223372036854775807'), ('none', NULL), ('0', '0'))
			 AS t (given, token);
SELECT each_with('k', 'NULL');
-- in another scope there is no such reservation
SELECT outcome_of(
	format($$SELECT idem_complete('k', token => %s, scope => 's')$$, :first)),
	   outcome_of(format($$SELECT idem_release('k', %s, 's')$$, :first));

-- it stays current after the lease, until somebody takes over
SELECT let_pass('k');
SELECT each_with('k', :'first');
SELECT token AS second FROM idem_reserve('k') \gset
SELECT each_with('k', :'first') AS late, each_with('k', :'second') AS current;
-- the late one has changed nothing, and the other one's result stands
SELECT outcome_of(format($$SELECT idem_complete('k', '"old"', %s)$$, :first));
SELECT idem_complete('k', '"new"', :second);
SELECT outcome_of(format($$SELECT idem_complete('k', '"old"', %s)$$, :first)),
	   outcome_of(format($$SELECT idem_complete('k', '"new"', %s)$$, :first)),
	   outcome_of(format($$SELECT idem_fail('k', '"old"', %s)$$, :first)),
	   outcome_of(format($$SELECT idem_release('k', %s)$$, :first));
SELECT status, result FROM idem_reserve('k');
-- a key that was reserved anew after its memory
SELECT let_pass('k');
SELECT token AS third FROM idem_reserve('k') \gset
SELECT each_with('k', :'first') AS first, each_with('k', :'second') AS second,
	   each_with('k', :'third') AS third;

-- a late call that was not taken over tells the truth
SELECT token FROM idem_reserve('late', '1 microsecond') \gset
SELECT idem_complete('late', '"truth"', :token);
SELECT status, result, attempt FROM idem_reserve('late');
SELECT token FROM idem_reserve('late fail', '1 microsecond') \gset
SELECT idem_fail('late fail', '"truth"', :token);
SELECT status, result, attempt FROM idem_reserve('late fail');
SELECT token FROM idem_reserve('late release', '1 microsecond') \gset
SELECT idem_release('late release', :token);
SELECT status, attempt, maybe_ran FROM idem_reserve('late release');
SELECT token FROM idem_reserve('late extend', '1 microsecond') \gset
SELECT idem_extend('late extend', token => :token)
	   > clock_timestamp() AS extended;
SELECT status, attempt FROM idem_reserve('late extend');
-- nor does it matter how late
SELECT token FROM idem_reserve('very late', takeover => '0') \gset
SELECT idem_abandon('very late', :token);
SELECT status FROM idem_reserve('very late', takeover => '0');
SELECT idem_complete('very late', '"truth"', :token);

--
-- Without one: reservations of the current transaction
--
BEGIN;
SELECT status FROM idem_reserve('mine');
SELECT each_with('mine', NULL) AS none, each_with('mine', '0') AS zero;
SELECT each_with('mine', token_of('mine')::text) AS token;
-- from inside a savepoint, and after it
SAVEPOINT a;
SELECT each_with('mine', NULL);
SELECT status FROM idem_reserve('inner');
SAVEPOINT b;
SELECT each_with('inner', NULL);
RELEASE b;
RELEASE a;
SELECT each_with('inner', NULL);
-- extended, by others' triggers changed, lapsed: it remains ours
SELECT idem_extend('mine', '1 hour') IS NOT NULL AS extended;
UPDATE idempotency_keys SET holder = 'x' WHERE key = 'mine';
SELECT each_with('mine', NULL);
SELECT let_pass('mine');
SELECT each_with('mine', NULL);
SELECT idem_abandon('mine');
SELECT each_with('mine', NULL);
SELECT idem_complete('mine', '1');
COMMIT;
-- once committed it is not
SELECT each_with('mine', NULL) AS mine, each_with('inner', NULL) AS inner;
SELECT each_with('inner', token_of('inner')::text);

-- what a savepoint takes back was never ours
BEGIN;
SAVEPOINT a;
SELECT status FROM idem_reserve('undone');
ROLLBACK TO a;
SELECT each_with('undone', NULL);
-- somebody else's that we took over, and gave up again
SELECT let_pass('inner');
SAVEPOINT b;
SELECT status, attempt FROM idem_reserve('inner');
SELECT each_with('inner', NULL);
ROLLBACK TO b;
SELECT each_with('inner', NULL);
ROLLBACK;
SELECT each_with('inner', NULL);

-- each way of winning makes a reservation ours
BEGIN;
SELECT state, make_state(state, state) IS NOT NULL AS made
FROM unnest(ARRAY['lapsed', 'expired', 'released', 'done']) AS state;
UPDATE idempotency_keys SET holder = 'h' WHERE key = 'lapsed';
COMMIT;
SELECT let_pass('done');
SELECT token FROM idem_reserve('held', holder => 'h') \gset
BEGIN;
SELECT key, r.status, attempt, each_with(key, NULL)
FROM unnest(ARRAY['lapsed', 'expired', 'released', 'done']) AS key,
	 idem_reserve(key) AS r;
SELECT r.status, attempt, each_with('held', NULL)
FROM idem_reserve('held', holder => 'h') AS r;
ROLLBACK;
SELECT key, each_with(key, NULL)
FROM unnest(ARRAY['lapsed', 'expired', 'released', 'held']) AS key;

-- but to write to somebody else's does not
SELECT token FROM idem_reserve('theirs') \gset
BEGIN;
SELECT idem_extend('theirs', '1 hour', :token) IS NOT NULL AS extended;
SELECT each_with('theirs', NULL);
SELECT each_with('theirs', :'token');
SAVEPOINT a;
SELECT idem_extend('theirs', '1 hour', :token) IS NOT NULL AS extended;
RELEASE a;
SELECT each_with('theirs', NULL);
UPDATE idempotency_keys SET holder = 'x' WHERE key = 'theirs';
SELECT each_with('theirs', NULL);
SELECT idem_abandon('theirs', :token);
SELECT each_with('theirs', NULL);
SELECT idem_complete('theirs', '1', :token);
SELECT each_with('theirs', NULL);
ROLLBACK;
BEGIN;
SELECT idem_release('theirs', :token);
SELECT each_with('theirs', NULL);
-- until we win it ourselves
SELECT status, attempt FROM idem_reserve('theirs');
SELECT each_with('theirs', NULL);
COMMIT;

-- a reservation of a row that is updated by others' SQL in between
BEGIN;
SELECT status FROM idem_reserve('deleted');
DELETE FROM idempotency_keys WHERE key = 'deleted';
SELECT each_with('deleted', NULL);
SELECT status, attempt FROM idem_reserve('deleted');
SELECT each_with('deleted', NULL);
ROLLBACK;

--
-- Rewritten by the current transaction, every row looks like one of its own:
-- what was there before wants a token, its own included
--
SELECT token AS theirs FROM idem_reserve('rewritten') \gset
BEGIN;
SELECT status FROM idem_reserve('before');
ALTER TABLE idempotency_keys ADD note float DEFAULT random();
SELECT each_with('rewritten', NULL), each_with('rewritten', :'theirs');
SELECT each_with('before', NULL),
	   each_with('before', token_of('before')::text);
SELECT status FROM idem_reserve('after');
SELECT each_with('after', NULL), each_with('rewritten', NULL);
SELECT status FROM idem_reserve('rewritten', wait => '1 minute');
SELECT idem_extend('rewritten', '1 hour', :theirs) IS NOT NULL AS extended;
SELECT each_with('rewritten', NULL);
SELECT idem_extend('after', '1 hour') IS NOT NULL AS extended;
SELECT idem_complete('after', '1');
SELECT status FROM idem_reserve('again');
ALTER TABLE idempotency_keys ALTER note TYPE text;
SELECT each_with('again', NULL);
SELECT status FROM idem_reserve('last');
SELECT each_with('again', NULL), each_with('last', NULL);
TRUNCATE idempotency_keys;
SELECT status FROM idem_reserve('emptied');
SELECT idem_complete('emptied', '1');
ROLLBACK;
SELECT each_with('rewritten', NULL);

--
-- idem_tool.session_tokens: for people at a prompt
--
SHOW idem_tool.session_tokens;
SELECT token FROM idem_reserve('prompt') \gset
SELECT each_with('prompt', NULL);
SET idem_tool.session_tokens = on;
-- what was reserved before is not remembered
SELECT each_with('prompt', NULL);
SELECT status FROM idem_reserve('prompt 2');
SELECT each_with('prompt 2', NULL);
SELECT idem_extend('prompt 2', '1 hour') IS NOT NULL AS extended;
SELECT idem_complete('prompt 2', '1');
SELECT idem_complete('prompt 2', '1'),
	   outcome_of($$SELECT idem_complete('prompt 2', '2')$$);
-- by key and scope
SELECT status FROM idem_reserve('prompt 3', scope => 's');
SELECT each_with('prompt 3', NULL);
SELECT idem_release('prompt 3', scope => 's');
-- a wrong token remains wrong
SELECT status FROM idem_reserve('prompt 4');
SELECT each_with('prompt 4', '1'), each_with('prompt 4', 'NULL');
-- the latest call counts: that one won nothing
SELECT status FROM idem_reserve('prompt 4');
SELECT each_with('prompt 4', NULL);
-- taken over by somebody else
SELECT status, token FROM idem_reserve('prompt 5') \gset
UPDATE idempotency_keys SET token = nextval('idempotency_keys_token_seq')
WHERE key = 'prompt 5';
SELECT each_with('prompt 5', NULL);
-- rolled back, and then somebody else's
BEGIN;
SELECT status FROM idem_reserve('prompt 6');
ROLLBACK;
SELECT each_with('prompt 6', NULL);
SET idem_tool.session_tokens = off;
SELECT status FROM idem_reserve('prompt 6');
SET idem_tool.session_tokens = on;
SELECT each_with('prompt 6', NULL);
-- off again: nothing is remembered
SELECT status FROM idem_reserve('prompt 7');
SELECT each_with('prompt 7', NULL);
SET idem_tool.session_tokens = off;
SELECT each_with('prompt 7', NULL);
-- with an explicit token nothing depends on it
SELECT each_with('prompt 7', token_of('prompt 7')::text);
RESET idem_tool.session_tokens;

TRUNCATE idempotency_keys;
DROP FUNCTION each_with;
