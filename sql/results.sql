--
-- Results and errors: kept and replayed as they were.
--
\pset format unaligned
\pset null '(null)'

CREATE TEMP TABLE given (nr int GENERATED ALWAYS AS IDENTITY, result jsonb);
INSERT INTO given (result) VALUES
	(NULL), ('null'), ('false'), ('true'), ('0'), ('-0'), ('1.0'),
	('""'), ('" "'), ('"null"'), ('[]'), ('{}'), ('[null]'),
	('{"a": null}'), ('{"": ""}'),
	('{"n": 12345678901234567890.1234567890123}'),
	('9007199254740993'), ('18446744073709551617'),
	('-0.00000000000000000000000000000000000000001'), ('1e-300'), ('1e400'),
	('"\u00e9\ud83d\ude00 \"\\"'), ('[1, [2, [3, {"a": [4]}]]]');

-- completed by another transaction
SELECT count(*) FROM given, idem_reserve('complete ' || nr) AS r
WHERE r.status = 'reserved';
SELECT count(*) FROM given
WHERE idem_complete('complete ' || nr, result, token_of('complete ' || nr));
SELECT nr, r.status, left(r.result::text, 60) AS result,
	   (r.result IS NULL) = (g.result IS NULL)
	   AND r.result::text IS NOT DISTINCT FROM g.result::text AS same,
	   (l.result IS NULL) = (g.result IS NULL)
	   AND l.result::text IS NOT DISTINCT FROM g.result::text AS lookup
FROM given AS g, idem_reserve('complete ' || nr) AS r,
	 idem_lookup('complete ' || nr) AS l
ORDER BY nr;

-- failed, in one transaction
BEGIN;
SELECT count(*) FROM given, idem_reserve('fail ' || nr) AS r
WHERE r.status = 'reserved';
SELECT count(*) FROM given WHERE idem_fail('fail ' || nr, result);
SELECT r.status, count(*) FROM given AS g, idem_reserve('fail ' || nr) AS r
WHERE (r.result IS NULL) = (g.result IS NULL)
AND r.result::text IS NOT DISTINCT FROM g.result::text GROUP BY r.status;
COMMIT;
SELECT r.status, count(*) FROM given AS g, idem_reserve('fail ' || nr) AS r
WHERE (r.result IS NULL) = (g.result IS NULL)
AND r.result::text IS NOT DISTINCT FROM g.result::text GROUP BY r.status;

-- each equals itself, and two are the same number
SELECT a.result AS recorded, b.result AS again
FROM given AS a, given AS b,
	 outcome_of(format('SELECT idem_complete(%L, %L, %s)',
					   'complete ' || a.nr, b.result,
					   token_of('complete ' || a.nr))) AS outcome
WHERE outcome = 'false' AND a.nr <> b.nr ORDER BY a.nr, b.nr;
SELECT outcome, count(*)
FROM given AS a, given AS b,
	 outcome_of(format('SELECT idem_fail(%L, %L, %s)',
					   'fail ' || a.nr, b.result,
					   token_of('fail ' || a.nr))) AS outcome
GROUP BY outcome ORDER BY outcome COLLATE "C";
TRUNCATE idempotency_keys;

-- the order of an object's members, and their repetition, do not matter
SELECT token FROM idem_reserve('object') \gset
SELECT idem_complete('object', '{"b": 1, "a": {"y": 1, "x": 2}}', :token);
SELECT idem_complete('object', '{"a": {"x": 2.0, "y": 1}, "b": 0, "b": 1}',
					 :token);

-- a number of 100 001 digits
SELECT token FROM idem_reserve('huge number') \gset
SELECT idem_complete('huge number', '{"n": 1e100000}', :token);
SELECT length(result ->> 'n'), result = '{"n": 1e100000}' AS same
FROM idem_reserve('huge number');

-- what jsonb cannot hold leaves the reservation as it is
SELECT token FROM idem_reserve('nul') \gset
SELECT outcome_of(format($$SELECT idem_complete('nul', '"\u0000"', %s)$$,
						 :token)) AS nul,
	   outcome_of(format($$SELECT idem_complete('nul', 'no json', %s)$$,
						 :token)) AS other;
SELECT status FROM idem_reserve('nul');
SELECT idem_complete('nul', '"clean"', :token);

--
-- Large results: out of line, compressed, from another table's TOAST
--
CREATE TEMP TABLE documents (name text, doc jsonb);
ALTER TABLE documents ALTER doc SET STORAGE EXTERNAL;
INSERT INTO documents
SELECT 'external', jsonb_build_object('list', jsonb_agg(md5(i::text)))
FROM generate_series(1, 15000) AS i;
ALTER TABLE documents ALTER doc SET STORAGE EXTENDED;
INSERT INTO documents
SELECT 'compressed out of line', jsonb_agg(md5((i / 3)::text))
FROM generate_series(1, 15000) AS i;
INSERT INTO documents
SELECT 'compressed inline', jsonb_build_object('text', repeat('x', 500000));
INSERT INTO documents SELECT 'inline',
	jsonb_build_object('text', repeat('x', 1000));
INSERT INTO documents SELECT 'short', '{"a": 1}';
SELECT name, length(doc::text) > 500000 AS large,
	   pg_column_size(doc) > 100000 AS stored_large
FROM documents ORDER BY name COLLATE "C";

SELECT count(*) FROM documents, idem_reserve(name) WHERE status = 'reserved';
SELECT name, idem_complete(name, doc, token_of(name)) FROM documents
ORDER BY name COLLATE "C";
CREATE TEMP TABLE hashes AS SELECT name, md5(doc::text) AS hash
FROM documents;
-- an equal one, and one that differs in the end
SELECT name, idem_complete(name, doc, token_of(name)) FROM documents
ORDER BY name COLLATE "C";
SELECT count(*) FROM documents
WHERE outcome_of(format('SELECT idem_complete(%L, %L, %s)', name,
						doc || '[1]', token_of(name)))
	= 'IK004';
-- their source may go
DROP TABLE documents;
SELECT name, r.status, md5(r.result::text) = hash AS reserve,
	   md5(l.result::text) = hash AS lookup
FROM hashes, idem_reserve(name) AS r, idem_lookup(name) AS l ORDER BY name COLLATE "C";
-- by each way of calling
SELECT md5((idem_reserve('external')).result::text) = hash AS same
FROM hashes WHERE name = 'external';
CREATE TEMP TABLE copies AS
	SELECT name, (idem_reserve(name)).* FROM hashes
	UNION ALL SELECT name, r.* FROM hashes, idem_reserve(name) AS r;
SELECT count(*) FROM copies JOIN hashes USING (name)
WHERE md5(result::text) = hash;
-- a key reserved again after its memory does not drag its result along
SELECT count(let_pass(name)) FROM hashes;
SELECT status, count(*) FROM hashes, idem_reserve(name) GROUP BY status;
SELECT count(*) FROM copies JOIN hashes USING (name)
WHERE md5(result::text) = hash;
SELECT idem_fail(name, result, token_of(name)) FROM copies
WHERE name = 'external' LIMIT 1;
SELECT status, md5(result::text) = hash AS same
FROM hashes, idem_reserve(name) WHERE name = 'external';
VACUUM idempotency_keys;
SELECT status, md5(result::text) = hash AS same
FROM hashes, idem_reserve(name) WHERE name = 'external';
DROP TABLE copies, hashes;

--
-- Too large: refused, and the reservation stays
--
SHOW idem_tool.max_result_size;
SELECT token FROM idem_reserve('large') \gset
SELECT version_of('large') AS version_before \gset
SELECT error_of(
	format($$SELECT idem_complete('large', to_jsonb(repeat('x', 2000000)), %s)$$,
					   :token));
SELECT error_of(
	format($$SELECT idem_fail('large', to_jsonb(repeat('x', 2000000)), %s)$$,
					   :token));
SELECT version_of('large') = :'version_before' AS unchanged;
SELECT status FROM idem_reserve('large');
-- a pointer to it is accepted
SELECT idem_complete('large', '{"see": "documents/1"}', :token);
SELECT status, result FROM idem_reserve('large');

-- to the byte, uncompressed, wherever it comes from
CREATE TEMP TABLE sized AS
	SELECT to_jsonb(repeat('x', 300000)) AS doc,
		   pg_column_size(to_jsonb(repeat('x', 300000))) AS size;
SELECT pg_column_size(doc) < size / 10 AS compressed FROM sized;
SELECT token FROM idem_reserve('limit') \gset
SELECT set_config('idem_tool.max_result_size', (size - 1)::text, false)
	   IS NOT NULL AS set FROM sized;
SELECT outcome_of(
	format($$SELECT idem_complete('limit', doc, %s) FROM sized$$, :token)) AS stored,
	   outcome_of(
	   	format($$SELECT idem_complete('limit', to_jsonb(repeat('x', 300000)), %s)$$, :token)) AS fresh;
SELECT set_config('idem_tool.max_result_size', size::text, false)
	   IS NOT NULL AS set FROM sized;
SELECT outcome_of(
	format($$SELECT idem_complete('limit', doc, %s) FROM sized$$, :token)) AS stored;
SELECT outcome_of(
	format($$SELECT idem_complete('limit', to_jsonb(repeat('x', 300000)), %s)$$, :token)) AS again;
-- what was recorded under a higher limit is replayed all the same
SET idem_tool.max_result_size = 0;
SELECT status, length(result::text) FROM idem_reserve('limit');
SET idem_tool.max_result_size = '10MB';

-- nor what could be stored and never be read: 2050 numbers of 16 bytes have
-- more digits than are written out, and 9000 more than a text can have
SELECT token FROM idem_reserve('digits') \gset
CREATE TEMP TABLE digits AS
SELECT n, (SELECT jsonb_agg('1e130999'::jsonb) FROM generate_series(1, n)) AS doc
FROM unnest('{2049, 2050, 9000}'::int[]) AS n;
SELECT n, pg_column_size(doc) < 150000 AS small FROM digits ORDER BY n;
SELECT error_of(
	format($$SELECT idem_complete('digits', doc, %s) FROM digits WHERE n = 9000$$, :token));
SELECT outcome_of(
	format($$SELECT idem_complete('digits', doc, %s) FROM digits WHERE n = 2050$$, :token));
SELECT outcome_of(
	format($$SELECT idem_fail('digits', jsonb_build_object('why', doc), %s) FROM digits WHERE n = 2050$$, :token));
SELECT outcome_of($$SELECT idem_resolve('digits', 'done', doc, force => true) FROM digits WHERE n = 2050$$);
SELECT status FROM idem_lookup('digits');
SELECT outcome_of(
	format($$SELECT idem_complete('digits', doc, %s) FROM digits WHERE n = 2049$$, :token));
SELECT jsonb_array_length(result) FROM idem_lookup('digits');
-- strings are longer than they are stored, too, but never too long
SELECT token FROM idem_reserve('control') \gset
SELECT outcome_of(
	format($$SELECT idem_complete('control', to_jsonb(repeat(E'\x01"\\', 100000)), %s)$$, :token));
SELECT length(result::text) FROM idem_lookup('control');
DROP TABLE digits;

-- text that is no jsonb: once more as a string, and decoded twice
SELECT token FROM idem_reserve('no jsonb') \gset
SELECT outcome_of(format($$SELECT idem_complete('no jsonb', '{"a": "\u0000"}', %s)$$, :token)) AS nul,
	outcome_of(format($$SELECT idem_complete('no jsonb', '{"a": "\ud800"}', %s)$$, :token)) AS surrogate;
SELECT status FROM idem_lookup('no jsonb');
SELECT outcome_of(format($$SELECT idem_complete('no jsonb', '"{\"a\": \"\\u0000\\ud800\"}"', %s)$$, :token));
SELECT result ->> 0 AS text FROM idem_reserve('no jsonb');

-- SQL NULL and JSON null are two outcomes
SELECT token FROM idem_reserve('null') \gset
SELECT idem_complete('null', 'null', :token);
SELECT outcome_of(format($$SELECT idem_complete('null', NULL, %s)$$, :token));

-- no result has no size
SET idem_tool.max_result_size = 0;
SELECT token FROM idem_reserve('zero') \gset
SELECT outcome_of(format($$SELECT idem_complete('zero', 'null', %s)$$,
						 :token));
SELECT idem_complete('zero', NULL, :token);
SELECT status, result FROM idem_reserve('zero');
-- in the transaction that reserved, too
BEGIN;
SELECT status FROM idem_reserve('mine');
SELECT outcome_of($$SELECT idem_complete('mine', '1')$$);
SELECT idem_complete('mine');
COMMIT;
RESET idem_tool.max_result_size;

TRUNCATE idempotency_keys;
