--
-- Fingerprints: a key stands for one request.
--
\pset format unaligned
\pset null '(null)'
SET statement_timeout = '20s';

-- the same request, however it is written
SELECT token
FROM idem_reserve('k', request => '{"a": 1, "b": {"x": 1, "y": 2}}') \gset
SELECT fingerprint = idem_fingerprint('{"a": 1, "b": {"x": 1, "y": 2}}')
	   AS stored
FROM idempotency_keys;
SELECT request,
	   outcome_of(format('SELECT status FROM idem_reserve(%L, request => %L)',
						 'k', request))
FROM unnest(ARRAY[
	'{"b": {"y": 2, "x": 1}, "a": 1}',
	'{"a": 1.0, "b": {"x": 10e-1, "y": 2.00}}',
	'{"a": 3, "a": 1, "b": {"y": 2, "x": 1}}', NULL,
	'{"a": 1, "b": {"x": 1, "y": 3}}', '{"a": "1", "b": {"x": 1, "y": 2}}',
	'{"a": 1, "b": {"x": 1, "y": 2}, "c": null}', '{"a": 1}', '{}', 'null',
	'[]'
]) AS request;
-- large integers are not rounded
SELECT status FROM idem_reserve('int', request => '9223372036854775808');
SELECT outcome_of(
	$$SELECT idem_reserve('int', request => '9223372036854775809')$$);
SELECT status FROM idem_reserve('int', request => '9223372036854775808.0');

-- another request is refused in every state, before anything happens, and
-- hears nothing of the result
CREATE TEMP TABLE states (nr int GENERATED ALWAYS AS IDENTITY, state text);
INSERT INTO states (state)
VALUES ('in_progress'), ('lapsed'), ('expired'), ('released'), ('done'),
	('failed');
SELECT count(make_state(state, state)) FROM states;
UPDATE idempotency_keys SET fingerprint = idem_fingerprint('{"card": 1}'),
	holder = 'h',
	result = result || '["secret"]';
CREATE TEMP TABLE versions AS SELECT key, version_of(key)
FROM idempotency_keys;
SELECT state, left(error, 5) AS code, error LIKE '%secret%' AS disclosed
FROM states,
	 error_of(format($$SELECT idem_reserve(%L, request => '{"card": 2}')$$,
					 state)) AS error
ORDER BY nr;
-- at once, whatever else the call says
SELECT state,
	   outcome_of(
				  format($$SELECT idem_reserve(%L, request => '{"card": 2}',
						 wait => '1 hour',
	takeover => '0', holder => 'h')$$, state))
FROM states ORDER BY nr;
BEGIN READ ONLY;
SELECT state,
	   outcome_of(
	   	format($$SELECT idem_reserve(%L, request => '{"card": 2}')$$, state))
FROM states ORDER BY nr;
COMMIT;
SELECT count(*) FROM versions AS v
WHERE version_of(key) IS DISTINCT FROM v.version_of;

-- the same one, or none, is answered
SELECT state, same.status AS same, none.status AS none
FROM states,
	 LATERAL (SELECT status
			  FROM idem_reserve(state, request => '{"card": 1.0}',
								takeover => '0')) AS same,
	 LATERAL (SELECT status FROM idem_reserve(state, takeover => '0')) AS none
WHERE state <> 'released' ORDER BY nr;
SELECT status FROM idem_reserve('released', request => '{"card": 1}');

-- the binding stays with the key: over a release, a take-over, its completion
SELECT idem_release('released', token_of('released'));
SELECT status FROM idem_reserve('released');
SELECT outcome_of(
	$$SELECT idem_reserve('released', request => '{"card": 2}')$$);
SELECT status FROM idem_reserve('lapsed');
SELECT outcome_of(
	$$SELECT idem_reserve('lapsed', request => '{"card": 2}')$$);
SELECT idem_complete('lapsed', '1', token_of('lapsed'));
SELECT outcome_of(
	$$SELECT idem_reserve('lapsed', request => '{"card": 2}')$$);
SELECT status FROM idem_reserve('lapsed', request => '{"card": 1}');

-- a key reserved without a request is not bound, and replays to any
SELECT token FROM idem_reserve('none') \gset
SELECT status FROM idem_reserve('none', request => '1');
SELECT status FROM idem_reserve('none', request => '2');
SELECT idem_complete('none', '1', :token);
SELECT status FROM idem_reserve('none', request => '3');
SELECT fingerprint FROM idempotency_keys WHERE key = 'none';
-- until an attempt binds it
SELECT make_state('later', 'lapsed') IS NOT NULL AS made;
SELECT status FROM idem_reserve('later', request => '1');
SELECT outcome_of($$SELECT idem_reserve('later', request => '2')$$);

-- SQL NULL is no request, JSON null is one
SELECT status FROM idem_reserve('null', request => 'null');
SELECT status FROM idem_reserve('null', request => NULL);
SELECT outcome_of($$SELECT idem_reserve('null', request => '{}')$$);

-- scopes are apart
SELECT status FROM idem_reserve('k', request => '"other"', scope => 's');

-- rotating fields are left out by the caller
SELECT status
FROM idem_reserve('rotating',
				  request => '{"amount": 1, "ts": 1, "auth": "x"}'::jsonb - '{ts,auth}'::text[]);
SELECT status
FROM idem_reserve('rotating',
				  request => '{"amount": 1, "ts": 2, "auth": "y"}'::jsonb - '{ts,auth}'::text[]);
SELECT outcome_of(
	$$SELECT idem_reserve('rotating', request => '{"amount": 2, "ts": 2}'::jsonb - '{ts,auth}'::text[])$$);

-- a large one
SELECT status
FROM idem_reserve('large', request => to_jsonb(repeat('x', 5000000)));
SELECT status
FROM idem_reserve('large', request => to_jsonb(repeat('x', 5000000)));
SELECT outcome_of(
	$$SELECT idem_reserve('large', request => to_jsonb(repeat('x', 4999999) || 'y'))$$);
SELECT octet_length(fingerprint) FROM idempotency_keys WHERE key = 'large';

-- whose request is it?  Before anything is done about it
SELECT key, fingerprint = idem_fingerprint('"other"') AS same
FROM idem_lookup('k', 's') AS l;
SELECT key, fingerprint FROM idem_reserve('no request'), idem_lookup('no request');

TRUNCATE idempotency_keys;
DROP TABLE states, versions;
