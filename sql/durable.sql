--
-- Commits that are flushed under synchronous_commit = off: those that leave a
-- reservation open, or settle one that an earlier transaction made.
--
\pset format unaligned
SET synchronous_commit = off;

-- Run the statements, commit, and see whether that commit is on disk.  The
-- WAL writer may flush it in the background at any moment; so it is tried
-- until a commit is found that was not flushed, 20 times at most.
CREATE PROCEDURE flushed(title text, statements text[],
						 before text DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
	end_of_wal pg_lsn;
	always boolean := true;
BEGIN
	FOR i IN 1..20 LOOP
		IF before IS NOT NULL THEN
			EXECUTE replace(before, '?', i::text);
			COMMIT;
		END IF;
		FOR s IN 1..cardinality(statements) LOOP
			EXECUTE replace(statements[s], '?', i::text);
		END LOOP;
		end_of_wal := pg_current_wal_insert_lsn();
		COMMIT;
		IF pg_current_wal_flush_lsn() < end_of_wal THEN
			always := false;
			EXIT;
		END IF;
	END LOOP;
	RAISE NOTICE '%: %', title, CASE WHEN always THEN 'flushed'
		ELSE 'as the session has it' END;
END $$;

-- work that must not be lost in between: it moves the end of WAL
CREATE TABLE work (i int);

CALL flushed('no reservation', ARRAY['INSERT INTO work VALUES (?)']);
CALL flushed('reserve', ARRAY[
	$$SELECT idem_reserve('reserve ?')$$]);
CALL flushed('reserve, work', ARRAY[
	$$SELECT idem_reserve('then work ?')$$, 'INSERT INTO work VALUES (?)']);
CALL flushed('reserve, complete', ARRAY[
	$$SELECT idem_reserve('same ?')$$, $$SELECT idem_complete('same ?')$$]);
CALL flushed('reserve, fail', ARRAY[
	$$SELECT idem_reserve('same fail ?')$$,
	$$SELECT idem_fail('same fail ?')$$]);
CALL flushed('reserve, release', ARRAY[
	$$SELECT idem_reserve('same release ?')$$,
	$$SELECT idem_release('same release ?')$$]);
CALL flushed('two reserves, one complete', ARRAY[
	$$SELECT idem_reserve('two ?')$$, $$SELECT idem_reserve('other ?')$$,
	$$SELECT idem_complete('two ?')$$]);
CALL flushed('reserve, extend', ARRAY[
	$$SELECT idem_reserve('same extend ?')$$,
	$$SELECT idem_extend('same extend ?')$$]);
CALL flushed('reserve, extend, complete', ARRAY[
	$$SELECT idem_reserve('all ?')$$, $$SELECT idem_extend('all ?')$$,
	$$SELECT idem_complete('all ?')$$]);
CALL flushed('reserve, abandon', ARRAY[
	$$SELECT idem_reserve('same abandon ?')$$,
	$$SELECT idem_abandon('same abandon ?')$$]);
CALL flushed('reserve, abandon, complete', ARRAY[
	$$SELECT idem_reserve('abandoned ?')$$,
	$$SELECT idem_abandon('abandoned ?')$$,
	$$SELECT idem_complete('abandoned ?')$$]);
CALL flushed('reserve, release, reserve', ARRAY[
	$$SELECT idem_reserve('again ?')$$, $$SELECT idem_release('again ?')$$,
	$$SELECT idem_reserve('again ?')$$]);
CALL flushed('reserve, release, reserve, complete', ARRAY[
	$$SELECT idem_reserve('closed ?')$$, $$SELECT idem_release('closed ?')$$,
	$$SELECT idem_reserve('closed ?')$$,
	$$SELECT idem_complete('closed ?')$$]);
CALL flushed('reserve, complete, complete', ARRAY[
	$$SELECT idem_reserve('repeated ?')$$,
	$$SELECT idem_complete('repeated ?')$$,
	$$SELECT idem_complete('repeated ?')$$]);

-- an earlier transaction's
CALL flushed('complete',
			 ARRAY[$$SELECT idem_complete('e1 ?', token => token_of('e1 ?'))$$],
			 $$SELECT idem_reserve('e1 ?')$$);
CALL flushed('fail',
			 ARRAY[$$SELECT idem_fail('e2 ?', token => token_of('e2 ?'))$$],
			 $$SELECT idem_reserve('e2 ?')$$);
CALL flushed('release',
			 ARRAY[$$SELECT idem_release('e3 ?', token => token_of('e3 ?'))$$],
			 $$SELECT idem_reserve('e3 ?')$$);
CALL flushed('abandon',
			 ARRAY[$$SELECT idem_abandon('e4 ?', token => token_of('e4 ?'))$$],
			 $$SELECT idem_reserve('e4 ?')$$);
CALL flushed('extend',
			 ARRAY[$$SELECT idem_extend('e5 ?', token => token_of('e5 ?'))$$],
			 $$SELECT idem_reserve('e5 ?')$$);
CALL flushed('take-over', ARRAY[$$SELECT idem_reserve('e6 ?')$$],
			 $$SELECT make_state('e6 ?', 'lapsed')$$);
CALL flushed('take-over, complete', ARRAY[
	$$SELECT idem_reserve('e7 ?')$$, $$SELECT idem_complete('e7 ?')$$],
			 $$SELECT make_state('e7 ?', 'lapsed')$$);
CALL flushed('reserve after a release',
			 ARRAY[$$SELECT idem_reserve('e8 ?')$$],
			 $$SELECT make_state('e8 ?', 'released')$$);

-- what a savepoint takes back does not count
CREATE FUNCTION undone(statement text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RAISE EXCEPTION USING ERRCODE = 'UNDO1';
EXCEPTION WHEN SQLSTATE 'UNDO1' THEN NULL;
END $$;
CREATE FUNCTION kept(statement text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
EXCEPTION WHEN SQLSTATE 'UNDO1' THEN NULL;
END $$;
CALL flushed('undone reserve', ARRAY[
	$$SELECT undone('SELECT idem_reserve(''s1 ?'')')$$,
	'INSERT INTO work VALUES (?)']);
CALL flushed('kept reserve', ARRAY[
	$$SELECT kept('SELECT idem_reserve(''s2 ?'')')$$,
	'INSERT INTO work VALUES (?)']);
CALL flushed('reserve, undone complete', ARRAY[
	$$SELECT idem_reserve('s3 ?')$$,
	$$SELECT undone('SELECT idem_complete(''s3 ?'')')$$]);
CALL flushed('reserve, kept complete', ARRAY[
	$$SELECT idem_reserve('s4 ?')$$,
	$$SELECT kept('SELECT idem_complete(''s4 ?'')')$$]);
CALL flushed('kept reserve, complete', ARRAY[
	$$SELECT kept('SELECT idem_reserve(''s5 ?'')')$$,
	$$SELECT idem_complete('s5 ?')$$]);
CALL flushed('deeply kept reserve', ARRAY[
	$$SELECT kept('SELECT kept(''SELECT idem_reserve(''''s6 ?'''')'')')$$,
	'INSERT INTO work VALUES (?)']);
CALL flushed('kept reserve, undone above', ARRAY[
	$$SELECT undone('SELECT kept(''SELECT idem_reserve(''''s7 ?'''')'')')$$,
	'INSERT INTO work VALUES (?)']);
CALL flushed('undone settling', ARRAY[
	$$SELECT undone('SELECT idem_complete(''s8 ?'', token => token_of(''s8 ?''))')$$,
	'INSERT INTO work VALUES (?)'], $$SELECT idem_reserve('s8 ?')$$);

-- the setting
SET idem_tool.durable = off;
CALL flushed('reserve, not durable', ARRAY[$$SELECT idem_reserve('off ?')$$]);
RESET idem_tool.durable;
SET synchronous_commit = on;
CALL flushed('reserve, complete under synchronous_commit', ARRAY[
	$$SELECT idem_reserve('on ?')$$, $$SELECT idem_complete('on ?')$$]);
RESET synchronous_commit;

TRUNCATE idempotency_keys;
DROP TABLE work;
DROP PROCEDURE flushed;
DROP FUNCTION undone, kept;
