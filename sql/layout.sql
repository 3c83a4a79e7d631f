--
-- A table that is not what the extension made is refused, never half used.
--
\pset format unaligned
\pset null '(null)'

SELECT idem_complete('done', '1', token) FROM idem_reserve('done');
SELECT pg_get_constraintdef(oid) AS pkey FROM pg_constraint
WHERE conname = 'idempotency_keys_pkey' \gset

-- make a change, say how all kinds of calls fail, take it back
CREATE FUNCTION refusal(VARIADIC changes text[]) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	change text;
	refusals text;
BEGIN
	FOREACH change IN ARRAY changes LOOP
		EXECUTE change;
	END LOOP;
	SELECT string_agg(DISTINCT error_of(call), E'\n') INTO refusals
	FROM unnest(ARRAY[
		$s$SELECT * FROM idem_reserve('new')$s$,
		$s$SELECT * FROM idem_reserve('done')$s$,
		$s$SELECT * FROM idem_lookup('done')$s$,
		$s$SELECT idem_complete('done', '1', token_of('done'))$s$,
		$s$SELECT idem_release('new', 1)$s$,
		$s$SELECT idem_resolve('done', 'done', '1')$s$,
		$s$SELECT idem_forget('done')$s$]) AS call;
	RAISE EXCEPTION '%', refusals USING ERRCODE = 'UNDO1';
EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
	RETURN SQLERRM;
END $$;

-- columns
SELECT refusal('ALTER TABLE idempotency_keys RENAME holder TO keeper');
SELECT refusal('ALTER TABLE idempotency_keys DROP result CASCADE');
SELECT refusal('ALTER TABLE idempotency_keys ALTER token TYPE numeric');
SELECT refusal($$UPDATE pg_attribute SET atttypmod = 0
	WHERE attrelid = 'idempotency_keys'::regclass AND attname = 'reserved_at'$$);
SELECT refusal($$UPDATE pg_attribute SET attcollation = '"default"'::regcollation
	WHERE attrelid = 'idempotency_keys'::regclass AND attname = 'key'$$);
SELECT refusal('ALTER TABLE idempotency_keys ALTER expires_at DROP NOT NULL');

-- the primary key: other columns, another order, more columns, deferrable, none
SELECT refusal('ALTER TABLE idempotency_keys
	DROP CONSTRAINT idempotency_keys_pkey, ADD PRIMARY KEY (key, token)');
SELECT refusal('ALTER TABLE idempotency_keys
	DROP CONSTRAINT idempotency_keys_pkey, ADD PRIMARY KEY (key)');
SELECT refusal('ALTER TABLE idempotency_keys
	DROP CONSTRAINT idempotency_keys_pkey, ADD PRIMARY KEY (scope, key)');
SELECT refusal('ALTER TABLE idempotency_keys
	DROP CONSTRAINT idempotency_keys_pkey,
	ADD PRIMARY KEY (key, scope) INCLUDE (status)');
SELECT refusal('ALTER TABLE idempotency_keys
	DROP CONSTRAINT idempotency_keys_pkey,
	ADD PRIMARY KEY (key, scope) DEFERRABLE');
SELECT refusal('ALTER TABLE idempotency_keys
	DROP CONSTRAINT idempotency_keys_pkey');

-- rules, of which nothing would be heard
SELECT refusal('CREATE RULE quiet AS ON INSERT TO idempotency_keys
	DO INSTEAD NOTHING');
SELECT refusal('CREATE RULE quiet AS ON UPDATE TO idempotency_keys DO ALSO
	SELECT 1');
SELECT refusal('CREATE RULE quiet AS ON DELETE TO idempotency_keys DO ALSO
	SELECT 1');
-- one that is disabled is none
SELECT refusal('CREATE RULE quiet AS ON INSERT TO idempotency_keys
	DO INSTEAD NOTHING',
	'ALTER TABLE idempotency_keys DISABLE RULE quiet');

-- another table access method
SELECT refusal('CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler',
	'ALTER TABLE idempotency_keys SET ACCESS METHOD other');

-- objects, or a library, of another version
SELECT refusal($$UPDATE pg_extension SET extversion = '0.9'
	WHERE extname = 'idem_tool'$$,
	'ALTER TABLE idempotency_keys RENAME holder TO keeper');
SELECT refusal($$UPDATE pg_extension SET extversion = '1.7'
	WHERE extname = 'idem_tool'$$,
	'ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_pkey');
SELECT refusal($$UPDATE pg_extension SET extversion = '1.7'
	WHERE extname = 'idem_tool'$$,
	'ALTER SEQUENCE idempotency_keys_token_seq RENAME TO moved');
-- which is no matter as long as all is there
SELECT refusal($$UPDATE pg_extension SET extversion = '1.7'
	WHERE extname = 'idem_tool'$$);

-- the primary key made anew, as it was, and what is added, are welcome
BEGIN;
ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_pkey;
ALTER TABLE idempotency_keys ADD COLUMN note text,
	ADD CONSTRAINT anew :pkey;
SELECT status, result FROM idem_reserve('done');
SELECT status, attempt FROM idem_reserve('new', holder => 'h');
SELECT idem_complete('new', '2');
SELECT status, result FROM idem_lookup('new');
ROLLBACK;

--
-- A row that one unique index has and the primary key has not: every insertion
-- has a conflict, and no look finds it
--
CREATE UNIQUE INDEX extra_unique ON idempotency_keys (key, scope);
CREATE FUNCTION set_ready(ready boolean) RETURNS void LANGUAGE sql AS $$
	UPDATE pg_index SET indisready = ready
	WHERE indexrelid = 'idempotency_keys_pkey'::regclass;
$$;
SELECT set_ready(false);
INSERT INTO idempotency_keys (key, status, attempt, maybe_ran, token, owner,
	created_at, reserved_at, expires_at)
VALUES ('lost', 'in_progress', 7, false, 70, current_user, now(), now(),
		now() + interval '1 hour');
SELECT set_ready(true);
SELECT error_of($$SELECT idem_reserve('lost')$$);
SELECT error_of($$SELECT idem_reserve('lost', wait => '1 minute')$$);
SELECT error_of($$SELECT idem_resolve('lost', 'done', create_missing => true)$$);
-- others are not concerned
SELECT status FROM idem_reserve('new');
SELECT status FROM idem_reserve('done');
REINDEX TABLE idempotency_keys;
SELECT status, attempt FROM idem_reserve('lost');
DROP INDEX extra_unique;

-- something else under the sequence's name, which a rollback makes forgotten
\c -
BEGIN;
ALTER SEQUENCE idempotency_keys_token_seq RENAME TO moved;
CREATE TABLE idempotency_keys_token_seq ();
SELECT outcome_of($$SELECT idem_reserve('moved')$$);
ROLLBACK;
SELECT status FROM idem_reserve('moved');

DROP FUNCTION refusal, set_ready;
TRUNCATE idempotency_keys;
