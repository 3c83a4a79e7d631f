--
-- Compare idem_canonical with the lines of generate.js, read from standard
-- input; run.sh sets the variable "schema" and reads the output.
--
SET client_encoding = 'UTF8';
SET client_min_messages = warning;

CREATE TEMP TABLE line (no bigserial, content text NOT NULL);

-- A quote and a delimiter that never occur: the lines are taken as they are
\copy line (content) FROM pstdin WITH (FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02')

CREATE TEMP TABLE answer AS
	SELECT no, kind, document, expected,
		   :"schema".idem_canonical(document) AS canonical
	FROM (SELECT no,
				 content::jsonb ->> 'kind' AS kind,
				 (content::jsonb ->> 'input')::jsonb AS document,
				 content::jsonb ->> 'canonical' AS expected
		  FROM line) AS l;

CREATE TEMP TABLE fault AS
	SELECT no, 'differs' AS what, expected, canonical AS got
	FROM answer
	WHERE canonical IS DISTINCT FROM expected
	UNION ALL
	-- writing a canonical form again changes nothing
	SELECT no, 'no fixed point', canonical,
		   :"schema".idem_canonical(canonical::jsonb)
	FROM answer
	WHERE :"schema".idem_canonical(canonical::jsonb) <> canonical
	UNION ALL
	-- and loses nothing
	SELECT no, 'another value', document::text, canonical
	FROM answer
	WHERE canonical::jsonb <> document
	UNION ALL
	SELECT no, 'fingerprint',
		   encode(sha256(convert_to(canonical, 'UTF8')), 'hex'),
		   encode(:"schema".idem_fingerprint(document), 'hex')
	FROM answer
	WHERE :"schema".idem_fingerprint(document)
		  <> sha256(convert_to(canonical, 'UTF8'));

SELECT format(E'%s at line %s:\n  expected %s\n  got      %s',
			  what, no, left(expected, 600), left(got, 600))
FROM fault ORDER BY no LIMIT 5;

-- The verdict: lines, documents, numbers, faults
SELECT count(*),
	   count(*) FILTER (WHERE kind = 'document'),
	   count(*) FILTER (WHERE kind = 'number'),
	   (SELECT count(*) FROM fault)
FROM answer;
