--
-- two_phase: refuse to reserve where the reservation would not be committed
-- before its answer is acted upon.
--
\pset format unaligned
\pset null '(null)'

-- autocommit, in all kinds of statements
SELECT status FROM idem_reserve('alone', two_phase => true);
SELECT (idem_reserve('expanded', two_phase => true)).status;
SELECT (idem_reserve('columns', two_phase => true)).*, 'x' AS x \gset a_
SELECT :'a_status' AS status, :a_attempt AS attempt;
SELECT key, status FROM unnest('{one,two}'::text[]) AS key, idem_reserve(key, two_phase => true);
-- what is there is answered
SELECT status, attempt FROM idem_reserve('alone', two_phase => true);
SELECT idem_complete('alone', '1', token_of('alone'));
SELECT status, result FROM idem_reserve('alone', two_phase => true);

-- a transaction block, a savepoint, several statements in one message
BEGIN;
SELECT idem_reserve('block', two_phase => true);
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT outcome_of($$SELECT idem_reserve('block', two_phase => true)$$);
-- whatever the answer would be, so that it is found by the first test
SELECT outcome_of($$SELECT idem_reserve('alone', two_phase => true)$$);
-- but after what is wrong with the arguments
SELECT outcome_of($$SELECT idem_reserve('', two_phase => true)$$);
-- false is as good as nothing
SELECT status FROM idem_reserve('block', two_phase => false);
SELECT status FROM idem_reserve('block 2', two_phase => NULL);
ROLLBACK;
SELECT 1 AS one \; SELECT idem_reserve('message', two_phase => true);
SELECT idem_reserve('message', two_phase => true) \; SELECT 1 AS one;
DO $$ BEGIN
	BEGIN
		PERFORM idem_reserve('subtransaction', two_phase => true);
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
END $$;
SELECT count(*) FROM unnest('{block,block 2,message,subtransaction}'::text[]) AS key, idem_lookup(key);

-- the setting; the argument goes before it
CREATE FUNCTION echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
SET idem_tool.two_phase = on;
SELECT status FROM idem_reserve('by setting');
BEGIN;
SELECT status FROM idem_reserve('not by setting', two_phase => false);
SELECT outcome_of($$SELECT idem_reserve('by setting 2')$$);
-- it is about effects outside: a function of ours that acts inside may
SELECT idem_run('inside', 'echo(jsonb)');
COMMIT;
RESET idem_tool.two_phase;
DROP FUNCTION echo(jsonb);

-- read only: what would have to write is refused for that
SET default_transaction_read_only = on;
SELECT status, result FROM idem_reserve('alone', two_phase => true);
SELECT idem_reserve('read only', two_phase => true);
RESET default_transaction_read_only;

TRUNCATE idempotency_keys;
