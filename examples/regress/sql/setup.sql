--
-- The schema, and what all tests rely on.
--

-- the worker stays away from this database while its tables are looked at
ALTER DATABASE :"DBNAME" SET idem_tool.worker = off;

-- its text is not to be repeated in expected/; an error would be
\getenv srcdir PG_ABS_SRCDIR
\set schema :srcdir '/shop.sql'
\set ECHO none
\i :schema
\set ECHO all

-- Let a key's lease or memory have ended a second ago.  Only for tests: in
-- production nobody but the functions writes the table.
CREATE FUNCTION let_pass(key text) RETURNS void
LANGUAGE sql AS $$
	UPDATE idempotency_keys AS k
	SET expires_at = clock_timestamp() - interval '1 second'
	WHERE k.key = let_pass.key
$$;

-- A clean table between tests
CREATE FUNCTION clean() RETURNS void
LANGUAGE sql AS $$
	TRUNCATE idempotency_keys;
	TRUNCATE orders, stock, receipts RESTART IDENTITY;
	INSERT INTO stock VALUES ('tea', 10), ('salt', 1);
$$;
