--
-- Arguments: short forms, names, defaults, and what is refused.
--
SET timezone = 'UTC';
\pset format unaligned
\pset null '(null)'

-- the short forms
BEGIN;
SELECT status, expires_at - created_at AS lease
FROM idem_reserve('a', '1 minute');
SELECT idem_complete('a', '{"n": 1}');
SELECT status, expires_at - completed_at AS memory, result
FROM idem_lookup('a');
SELECT status, expires_at - created_at AS lease FROM idem_reserve('b');
SELECT idem_release('b');
SELECT idem_release('b');
SELECT status, expires_at - created_at AS lease FROM idem_reserve('c');
SELECT idem_fail('c', '"no"');
SELECT status, result FROM idem_lookup('c');
SELECT status FROM idem_reserve('d');
SELECT idem_extend('d', '1 hour') > clock_timestamp() + interval '59 minutes'
	   AS extended;
SELECT idem_abandon('d');
SELECT status FROM idem_lookup('d');
ROLLBACK;
SELECT count(*) FROM idempotency_keys;

-- all arguments by their names
SELECT status, token
FROM idem_reserve(scope => 's', holder => 'h', takeover => '1 hour',
				  wait => '1 second', request => '{}', ttl => '5 minutes',
				  key => 'named') \gset
SELECT :'status' AS status;
SELECT idem_extend(scope => 's', token => :token, ttl => '10 minutes',
				   key => 'named')
	IS NOT NULL AS extended;
SELECT idem_abandon(scope => 's', token => :token, key => 'named');
SELECT idem_complete(scope => 's', ttl => '3 days', token => :token,
					 result => '1', key => 'named');
SELECT status, owner = current_user AS owner, holder, result,
	   expires_at - completed_at AS memory
FROM idem_lookup(scope => 's', key => 'named');
SELECT status, token FROM idem_reserve('named', scope => 't') \gset
SELECT idem_release(scope => 't', token => :token, key => 'named');
SELECT status, token FROM idem_reserve('named', scope => 't') \gset
SELECT idem_fail(scope => 't', ttl => '4 days', token => :token,
				 error => '"e"', key => 'named');
SELECT scope, status, attempt, fingerprint IS NOT NULL AS fingerprint, holder,
	   expires_at - completed_at AS memory, result
FROM idempotency_keys ORDER BY scope;
TRUNCATE idempotency_keys;

-- NULL for an optional argument is its default
BEGIN;
SELECT status, result, token > 0 AS token, attempt, maybe_ran,
	   expires_at - created_at AS lease, retry_after
FROM idem_reserve('k', NULL, NULL, NULL, NULL, NULL, NULL);
SELECT scope, fingerprint, holder FROM idempotency_keys;
SELECT idem_extend('k', NULL, scope => NULL) > now() AS extended;
SAVEPOINT s;
SELECT idem_complete('k', NULL, ttl => NULL, scope => NULL);
SELECT status, result, expires_at - completed_at AS memory
FROM idem_lookup('k', NULL);
ROLLBACK TO s;
SELECT idem_fail('k', NULL, ttl => NULL, scope => NULL);
SELECT status, result, expires_at - completed_at AS memory
FROM idem_lookup('k', NULL);
ROLLBACK TO s;
SELECT idem_release('k', scope => NULL);
ROLLBACK TO s;
SELECT idem_abandon('k', scope => NULL);
COMMIT;
TRUNCATE idempotency_keys;

--
-- Refused before anything is touched
--
SELECT tokens_taken() AS tokens_before \gset

-- a key is refused by all functions alike
CREATE TEMP TABLE functions (call text);
INSERT INTO functions VALUES
	('idem_reserve(%1$s, scope => %2$s)'),
	('idem_complete(%1$s, scope => %2$s)'),
	('idem_fail(%1$s, scope => %2$s)'),
	('idem_release(%1$s, scope => %2$s)'),
	('idem_abandon(%1$s, scope => %2$s)'),
	('idem_extend(%1$s, scope => %2$s)'),
	('idem_lookup(%1$s, scope => %2$s)');

SELECT key, count(*) AS functions, error
FROM unnest(ARRAY[
	$$NULL$$, $$''$$, $$' '$$, $$'     '$$, $$repeat(' ', 1024)$$,
	$$E'\t'$$, $$E'\n'$$, $$E'a\nb'$$, $$E'a\r'$$, $$E'\x01'$$, $$E'\x1f'$$,
	$$E'\x7f'$$, $$E'a\x7f'$$, $$U&'a\0080'$$, $$U&'a\0085b'$$, $$U&'\009f'$$,
	$$repeat('x', 1025)$$, $$repeat('ü', 513)$$, $$repeat(' ', 1025)$$,
	$$repeat('x', 100000)$$, $$repeat('x', 5000000)$$,
	$$(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) AS i)$$
]) WITH ORDINALITY AS k (key, nr),
	functions,
	error_of('SELECT * FROM ' || format(call, key, $$''$$)) AS error
GROUP BY nr, key, error ORDER BY nr;

-- so is a scope; it may be empty
SELECT scope, count(*) AS functions, error
FROM unnest(ARRAY[
	$$' '$$, $$'   '$$, $$E'\t'$$, $$E'a\nb'$$, $$E'\x7f'$$, $$U&'\0085'$$,
	$$repeat('x', 256)$$, $$repeat('ü', 128)$$, $$repeat('x', 5000000)$$
]) WITH ORDINALITY AS s (scope, nr),
	functions,
	error_of('SELECT * FROM ' || format(call, $$'k'$$, scope)) AS error
GROUP BY nr, scope, error ORDER BY nr;

-- and a holder
SELECT holder,
	   error_of(format($$SELECT * FROM idem_reserve('k', holder => %s)$$,
					   holder))
FROM unnest(ARRAY[
	$$''$$, $$' '$$, $$E'\t'$$, $$E'a\nb'$$, $$E'\x7f'$$, $$U&'\0085'$$,
	$$repeat('x', 256)$$, $$repeat('ü', 128)$$, $$repeat('x', 5000000)$$
]) AS holder;

-- a ttl
SELECT ttl, count(*) AS functions, error
FROM unnest(ARRAY[
	'0', '-1 microsecond', '-1 day', '1 day -24 hours', '-1 day 24 hours',
	'1 day -25 hours', '-1 month 28 days', '1 year -12 months',
	'178000000 years', '-178000000 years', '2147483647 days',
	'2562047788 hours', '100001 years',
	'100000 years 36600000 days 878400000 hours'
]) WITH ORDINALITY AS t (ttl, nr),
	unnest(ARRAY['idem_reserve', 'idem_complete', 'idem_fail', 'idem_extend'])
	AS function,
	error_of(format('SELECT * FROM %s(%L, ttl => %L)', function, 'k', ttl))
	AS error
GROUP BY nr, ttl, error ORDER BY nr;

-- wait is 0 to 1 hour
SELECT wait,
	   error_of(format('SELECT * FROM idem_reserve(%L, wait => %L)', 'k',
					   wait))
FROM unnest(ARRAY[
	'-1 microsecond', '-1 hour', '1 hour 1 microsecond', '1 day', '1 month',
	'1 day -22 hours', '178000000 years', '-178000000 years',
	'2147483647 days'
]) AS wait;

-- takeover is not negative
SELECT takeover,
	   error_of(format('SELECT * FROM idem_reserve(%L, takeover => %L)',
								 'k', takeover))
FROM unnest(ARRAY[
	'-1 microsecond', '-1 day', '1 day -25 hours', '178000000 years',
	'-178000000 years', '2147483647 days'
]) AS takeover;

-- a token that is NULL never stands for another
SELECT function,
	   error_of(format('SELECT * FROM %s(%L, token => NULL)', function, 'k'))
FROM unnest(ARRAY['idem_complete', 'idem_fail', 'idem_release',
				  'idem_abandon', 'idem_extend']) AS function;

-- nothing was stored, no token was used up
SELECT count(*) FROM idempotency_keys;
SELECT tokens_taken() = :tokens_before AS unchanged;

-- bad arguments come first, whatever the key's state
SELECT make_state('k', 'done') AS token \gset
SELECT outcome_of($$SELECT idem_reserve('k', ttl => '0')$$),
	   outcome_of($$SELECT idem_reserve('k', wait => '2 hours')$$),
	   outcome_of($$SELECT idem_reserve('k', takeover => '-1 hour')$$),
	   outcome_of($$SELECT idem_reserve('k', holder => ' ')$$),
	   outcome_of($$SELECT idem_complete('k', '"r"', ttl => '0')$$),
	   outcome_of($$SELECT idem_fail('k', '"r"', ttl => '0')$$),
	   outcome_of($$SELECT idem_extend('k', '0')$$),
	   outcome_of($$SELECT idem_release('k', NULL)$$),
	   outcome_of($$SELECT idem_abandon('k', NULL)$$);

--
-- Accepted
--
TRUNCATE idempotency_keys;

-- the longest names, incompressible, still fit the index
SELECT string_agg(md5(i::text), '') AS key,
	   left(string_agg(md5(i::text), ''), 255) AS scope
FROM generate_series(1, 32) AS i \gset
SELECT length(:'key'), length(:'scope');
SELECT call,
	   outcome_of('SELECT * FROM ' || format(call, quote_literal(:'key'),
												   quote_literal(:'scope')))
	NOT IN ('22023', '22004') AS accepted
FROM functions;
SELECT octet_length(key), octet_length(scope), status FROM idempotency_keys;

-- lengths are in bytes
SELECT status
FROM idem_reserve(repeat('ü', 512), scope => repeat('ü', 127) || 'x',
								holder => repeat('ü', 127) || 'x');

-- every key stands for itself: no case folding, trimming or normalisation
SELECT key, (SELECT status FROM idem_reserve(key)) AS status
FROM unnest(ARRAY['k', 'K', 'k ', ' k', 'k  k', U&'caf\00e9', U&'cafe\0301',
				  U&'\00a0', '''; SELECT 1 --', '%s', '\', '0', 'NULL'])
				  AS key;

-- a scope is a key space
SELECT scope, (SELECT status FROM idem_reserve('k', scope => scope)) AS status
FROM unnest(ARRAY['', 't', 'T', 't ']) AS scope;

-- intervals: the shortest, the longest; a day has 24 hours, a month 30 days,
-- in any time zone and at any time of the year
SET idem_tool.max_reservation_ttl = -1;
SELECT zone, bool_and(is_so) AS exact
FROM unnest(ARRAY['UTC', 'America/Los_Angeles', 'Australia/Lord_Howe']) AS zone,
	 set_config('TimeZone', zone, false) AS is_set,
	 (VALUES ('1 second', '1 second'), ('1 day', '24 hours'), ('1 month', '720 hours'),
			 ('1 year 2 months -3 days 4 hours', '10012 hours'),
			 ('200 days', '4800 hours'), ('100000 years', '864000000 hours'),
			 ('1 month -28 days 1 microsecond', '48 hours 1 microsecond')) AS t (ttl, hours),
	 LATERAL (SELECT expires_at = created_at + hours::interval
			  FROM idem_reserve(zone || is_set || ttl, ttl::interval)) AS r (is_so)
GROUP BY zone ORDER BY zone COLLATE "C";
RESET TimeZone;
RESET idem_tool.max_reservation_ttl;

-- the superuser's limits, and what a driver's units make of a few minutes
SELECT status FROM idem_reserve('the limit', '1 day');
SELECT idem_reserve('beyond', '1 day 1 microsecond');
SELECT idem_reserve('beyond', '300000');
SELECT idem_extend('the limit', '25 hours', token) FROM idempotency_keys WHERE key = 'the limit';
SELECT idem_complete('the limit', ttl => '100 years', token => token) FROM idempotency_keys WHERE key = 'the limit';
SET idem_tool.max_result_ttl = '1h';
SELECT status, token FROM idem_reserve('limited') \gset
SELECT idem_complete('limited', token => :token, ttl => '61 min');
SELECT idem_fail('limited', token => :token, ttl => '61 min');
SELECT idem_resolve('limited', 'done', force => true, ttl => '61 min');
SET idem_tool.result_ttl = -1;
SELECT idem_complete('limited', token => :token);
SELECT expires_at - completed_at AS memory FROM idempotency_keys WHERE key = 'limited';
SELECT status, token FROM idem_reserve('given back') \gset
SELECT idem_release('given back', :token);
SELECT expires_at <= clock_timestamp() + interval '1 hour' AS bounded FROM idempotency_keys WHERE key = 'given back';
RESET idem_tool.result_ttl;
RESET idem_tool.max_result_ttl;
SET idem_tool.max_reservation_ttl = '10min';
SELECT expires_at - created_at AS lease FROM idem_reserve('bounded');
RESET idem_tool.max_reservation_ttl;
SELECT status FROM idem_reserve('wait', wait => '1 hour');
SELECT status FROM idem_reserve('wait', wait => '0');
SELECT status FROM idem_reserve('wait', wait => '1 day -24 hours');
SELECT status FROM idem_reserve('takeover', takeover => '0');
SELECT status FROM idem_reserve('takeover', takeover => '100000 years');

TRUNCATE idempotency_keys;
DROP TABLE functions;
