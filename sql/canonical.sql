--
-- Canonical JSON, fingerprints and derived keys.
--
-- What is expected here is stored by users for ever: a change of any value
-- below is a bug, whatever the reason.  The database is UTF8.
--
SET client_encoding = 'UTF8';
SET extra_float_digits = 1;
\pset format unaligned

--
-- RFC 8785, published examples
--

-- section 3.2.2; its first number is no double, and we do not round it to one
SELECT idem_canonical($${
  "numbers": [333333333.33333329, 1E30, 4.50,
              2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}$$);

-- section 3.2.4: with that number as the double it is read as elsewhere, the
-- bytes are those of the RFC
SELECT convert_to(idem_canonical(jsonb_build_object(
		'numbers', jsonb_build_array(float8 '333333333.33333329', 1E30, 4.50,
									 2e-3, 0.000000000000000000000000001),
		'string', '"\u20ac$\u000F\u000aA''\u0042\u0022\u005c\\\"\/"'::jsonb,
		'literals', '[null, true, false]'::jsonb)), 'UTF8') =
	'\x7b226c69746572616c73223a5b6e756c6c2c747275652c66616c73655d2c22'
	'6e756d62657273223a5b3333333333333333332e333333333333332c31652b33'
	'302c342e352c302e3030322c31652d32375d2c22737472696e67223a22e282ac'
	'245c75303030665c6e4127425c225c5c5c5c5c222f227d' AS rfc_bytes;

-- section 3.2.3: members in the order of UTF-16 code units
SELECT o - 1 AS nr, m[1] AS value
FROM regexp_matches(idem_canonical($${
  "\u20ac": "Euro Sign",
  "\r": "Carriage Return",
  "\ufb33": "Hebrew Letter Dalet With Dagesh",
  "1": "One",
  "\ud83d\ude00": "Emoji: Grinning Face",
  "\u0080": "Control",
  "\u00f6": "Latin Small Letter O With Diaeresis"
}$$), ':"([^"]*)"', 'g') WITH ORDINALITY AS t (m, o)
ORDER BY o;

-- appendix B: doubles, given by the fewest digits that tell them apart
SELECT ieee754, idem_canonical(input::jsonb) AS canonical,
	   idem_canonical(input::jsonb) = expected AS ok
FROM (VALUES
	('0000000000000000', '0.0', '0'),
	('8000000000000000', '-0.0', '0'),
	('0000000000000001', '0.5E-323', '5e-324'),
	('8000000000000001', '-50e-325', '-5e-324'),
	('7fefffffffffffff', '17976931348623157E292', '1.7976931348623157e+308'),
	('ffefffffffffffff', '-17976931348623157E292',
	 '-1.7976931348623157e+308'),
	('4340000000000000', '9.007199254740992e15', '9007199254740992'),
	('c340000000000000', '-9007199254740992.0', '-9007199254740992'),
	('4430000000000000', '2.9514790517935283e+20', '295147905179352830000'),
	('44b52d02c7e14af5', '99999999999999970000000', '9.999999999999997e+22'),
	('44b52d02c7e14af6', '100000000000000000000000', '1e+23'),
	('44b52d02c7e14af7', '100000000000000010000000',
	 '1.0000000000000001e+23'),
	('444b1ae4d6e2ef4e', '9.999999999999997e20', '999999999999999700000'),
	('444b1ae4d6e2ef4f', '9.999999999999999e20', '999999999999999900000'),
	('444b1ae4d6e2ef50', '1000000000000000000000', '1e+21'),
	('3eb0c6f7a0b5ed8c', '0.0000009999999999999997', '9.999999999999997e-7'),
	('3eb0c6f7a0b5ed8d', '1e-6', '0.000001'),
	('41b3de4355555553', '3333333333333332e-7', '333333333.3333332'),
	('41b3de4355555554', '3.3333333333333325e8', '333333333.33333325'),
	('41b3de4355555555', '333333333.33333330', '333333333.3333333'),
	('41b3de4355555556', '333333333.33333340', '333333333.3333334'),
	('41b3de4355555557', '33333333333333343e-8', '333333333.33333343'),
	('becbf647612f3696', '-3.3333333333333333e-6',
	 '-0.0000033333333333333333'),
	('43143ff3c1cb0959', '14249539237812062e-1', '1424953923781206.2')
) AS appendix_b (ieee754, input, expected);

--
-- Numbers keep their exact value; their spelling does not matter
--
SELECT input, idem_canonical(input::jsonb)
FROM unnest('{1, 1.0, 1e0, 10e-1, 0.00010e4, 100, 1e2, 0, -0, 0.000, -0e9,
	123.4500, -12.340, 10001, 0.00010001, 99999999, 100000000,
	9007199254740992, 9007199254740993,
	9223372036854775807, 9223372036854775808, 9223372036854775809,
	18446744073709551616, 18446744073709551617,
	100000000000000000000, 1e20, 1e21, 1000000000000000000000,
	123456789012345678901, 1234567890123456789012,
	12345678901234567890.1234567890123,
	0.000001, 0.00000123, 1e-6, 1e-7, 1.5e-7,
	1e100000, -1e100000, 1e131071, 12e131070, 1e-16383, -1.5e-16382
}'::text[]) WITH ORDINALITY AS t (input, nr)
ORDER BY nr;

-- many huge numbers stay small
SELECT length(idem_canonical(jsonb_agg(1e131071 + i))) > 10000000 AS exact,
	   length(idem_canonical(jsonb_agg(1e131071 * (i % 9 + 1)))) AS short
FROM generate_series(1, 100) AS i;

-- what is no number became a string before we see it
SELECT idem_canonical(jsonb_build_array(numeric 'NaN', numeric 'Infinity',
										float8 '-Infinity'));

--
-- Strings, members, structure
--
SELECT idem_canonical(input::jsonb)
FROM unnest(ARRAY[
	$$null$$, $$true$$, $$false$$, $$0$$, $$""$$, $$[]$$, $${}$$, $$"x"$$,
	$$[null,false,0,"",[],{}]$$,
	$${"": {"": ""}}$$,
	$$ [ 1 , [ 2 , [ ] ] , { "b" : [ ] , "a" : { } } ] $$,
	$${"b":1,"a":2,"b":3}$$,
	$${"aa":1,"b":2,"B":3,"a":4,"10":5,"9":6}$$,
	$$"\u0001\u0002\u0007\b\t\n\u000b\f\r\u000e\u001f"$$,
	$$"\"\\\/\u0020\u0022\u005C\u002f"$$,
	$$"<\u003c\u003e&'"$$
]) WITH ORDINALITY AS t (input, nr)
ORDER BY nr;

-- DEL stands for itself, as all that follows it
SELECT idem_canonical('"\u007f\u0080\u2028\ufeff"')
	= U&'"\007F\0080\2028\FEFF"' AS literal;

-- beyond U+FFFF comes before U+E000, other than in UTF-8
SELECT idem_canonical(
	$${"\uffff":6,"\ue000":5,"\ud800\udc00":3,"\udbff\udfff":4,"\ud7ff":2,
	   "z":1}$$)
	= format('{"z":1,"%s":2,"%s":3,"%s":4,"%s":5,"%s":6}', U&'\D7FF',
			 U&'\+010000', U&'\+10FFFF', U&'\E000', U&'\FFFF') AS utf16_order;
SELECT idem_canonical($${"a\ue000":2,"a\ud83d\ude00":1,"a":0}$$)
	= format('{"a":0,"a%s":1,"a%s":2}', U&'\+01F600', U&'\E000')
	AS utf16_order;

-- no normalisation: NFC and NFD are two texts
SELECT idem_fingerprint('{"caf\u00e9":1}') = idem_fingerprint('{"cafe\u0301":1}')
	AS same_name,
	   idem_key('op', U&'caf\00e9') = idem_key('op', U&'cafe\0301')
	AS same_identity;

-- deep nesting
SELECT d, length(canonical), canonical = input AS same
FROM (SELECT d, repeat('[', d) || repeat(']', d) AS input
	  FROM unnest('{1,10,1000,3000}'::int[]) AS d) AS i,
	 LATERAL idem_canonical(input::jsonb) AS canonical;

-- wide: jsonb sorts by length first, so nothing here is in order
SELECT idem_canonical(jsonb_object_agg(i::text, i)) =
	   '{' || string_agg(format('"%s":%s', i, i), ',' ORDER BY i::text COLLATE "C")
	   || '}' AS sorted
FROM generate_series(0, 20000) AS i;

-- a member's order says nothing
SELECT idem_canonical('{"a":1,"b":{"x":1,"y":2}}')
	 = idem_canonical('{"b":{"y":2,"x":1},"a":1}') AS same;

-- strict
SELECT idem_canonical(NULL) IS NULL AS canonical,
	   idem_fingerprint(NULL) IS NULL AS fingerprint;

--
-- Fingerprints: the frozen table
--
-- Each was computed outside of PostgreSQL, from the canonical form:
--   hashlib.sha256(canonical.encode("utf-8")).hexdigest()
-- where for documents of ASCII names, integers and ASCII text
--   canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
--
SELECT nr, encode(idem_fingerprint(input::jsonb), 'hex') = expected AS ok,
	   idem_fingerprint(input::jsonb)
FROM (VALUES
	(1, $${}$$,
	 '44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a'),
	(2, $$[]$$,
	 '4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945'),
	(3, $$null$$,
	 '74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b'),
	(4, $$false$$,
	 'fcbcf165908dd18a9e49f7ff27810176db8e9f63b4352213741664245224f8aa'),
	(5, $$0$$,
	 '5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9'),
	(6, $$""$$,
	 '12ae32cb1ec02d01eda3581b127c1fee3b0dc53572ed6baf239721a03d82e126'),
	(7, $${"a":1,"b":{"x":1,"y":2}}$$,
	 'ca7a7c6cde8062a260c631854aab1e42e3510b86667e76b77ee42941495bdf07'),
	(8, $${"b": {"y": 2.0, "x": 1e0}, "a": 1.00}$$,
	 'ca7a7c6cde8062a260c631854aab1e42e3510b86667e76b77ee42941495bdf07'),
	(9, $${"amount_cents":4200,"currency":"EUR","id":"ord_8891","op":"charge_card"}$$,
	 '0f355643c2f555f4c155c81e70e4b7232274c134129eabfc5e369b8979e51924'),
	(10, $$9223372036854775808$$,
	 'c5c29af0c2b1ba23907ca40686689919361601e7740335050476b290f2f87ee8'),
	(11, $$9223372036854775809$$,
	 'db2732f250acf9268ab5ac5ead0459d8e1803ae6f163c52eb9a8b7defb61c897'),
	(12, $$18446744073709551616$$,
	 '8b292fc2d32f1fd491784610c61b90dc4632a6e4add19261eca4c3979e4ea6d2'),
	(13, $$18446744073709551617$$,
	 'a8482330e723ad4642b78444cbdb507ff747c51bbc0fa57e4546641336393be7'),
	(14, $$9007199254740992$$,
	 'c681da39d7273a6a24c15c9cac3a75526ff2ecf8ba4ee60346a0c70c8163bdb2'),
	(15, $$9007199254740993$$,
	 'a1c367c29158357e62a3ff5d3e800fb7698a22396439dbc0a9d4929322afd35d'),
	(16, $$12345678901234567890.1234567890123$$,
	 '45a0b4bd7682dafd8b7fb49e5bdf447c0cb3f5da6bba7e4f3669c2c3897a76fa'),
	(17, $$1e21$$,
	 '241c4643fa70b1dcde1205b71be4e3bebb17e9f880c8e1a33d0ead6c27271d3c'),
	(18, $$1e-7$$,
	 '5b33e02f2c5103a05d32f6ba9cb058294452bfbf393967f68bb30c1bdcbbab22'),
	(19, $$1e100000$$,
	 '77e4cc3661e5c0b4c2cfa1c9500022477037eea994f3fd7c0e266dbe599039e7'),
	(20, $$-0.0$$,
	 '5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9'),
	(21, $${"\ufb33":1,"\ud83d\ude00":2,"\u20ac":3,"\u00f6":4,"\u0080":5,"1":6,"\r":7,"":8}$$,
	 '827251fadcbf7a9927d63672908e7749d0952ccccc24c178b68123cb88217e68'),
	(22, $$"caf\u00e9"$$,
	 '28380feb8724d669bc8d4cf5b5a5bb1adbdc61b81ebd06f3fabc567b4f3b0fc5'),
	(23, $$"cafe\u0301"$$,
	 'c7d7e72b8ad0dd91beb4044a4bb17c6c8a9672cc620c4c76e6584f3525d400d1'),
	(24, $$"\u0001\b\t\n\f\r\u001f \"\\\/\u007f\u0085\u2028\uffff\ud83d\ude00"$$,
	 '4c398ce8e2c3d19e7320f661027a7eae4041a51d9bcfeba6c62ee08a50575b06'),
	(25, $$[[[[[{"a":[{"":[null,true,false,0,"",[],{}]}]}]]]]]$$,
	 'a18055f99a68727c7767503400b8c4e7426ab0013d0be9b482537759b6a9b3e1')
) AS frozen (nr, input, expected);

-- it is the hash of the canonical form's UTF-8
SELECT idem_fingerprint('{"é": [1.50, "\ud83d\ude00"]}')
	 = sha256(convert_to(idem_canonical('{"é": [1.50, "\ud83d\ude00"]}'), 'UTF8'))
	AS same;

-- numbers that only a double takes for equal are two requests
SELECT count(DISTINCT idem_fingerprint(jsonb_build_object('n', n::jsonb)))
FROM unnest('{9223372036854775808, 9223372036854775809,
	18446744073709551616, 18446744073709551617,
	9007199254740992, 9007199254740993}'::text[]) AS n;

-- null is not absence, and no two falsy values are one
SELECT count(DISTINCT idem_fingerprint(x::jsonb))
FROM unnest(ARRAY['null', 'false', '0', '""', '[]', '{}', '[null]',
				  '{"a":null}', '{"a":false}', '{"a":0}', '{"a":""}']) AS x;

-- rotating fields are taken out by the caller
SELECT idem_fingerprint('{"amount":1,"ts":1,"token":"x"}'::jsonb - '{ts,token}'::text[])
	 = idem_fingerprint('{"token":"y","amount":1.0,"ts":2}'::jsonb - '{ts,token}'::text[])
	AS same;

--
-- idem_key
--
-- The expected keys come from these lines of Python:
--   import hashlib, json
--   def key(name, members):
--       text = json.dumps(members, sort_keys=True, separators=(",", ":"))
--       return name + ":" + hashlib.sha256(text.encode()).hexdigest()[:32]
--
-- key("charge_card", {"op": "charge_card", "id": "ord_8891",
--                     "amount_cents": 4200})
SELECT key, key = 'charge_card:024bfa09f722232c800ff9095d3ba39a' AS ok
FROM idem_key('charge_card', 'ord_8891', '{"amount_cents":4200}') AS key;

-- key("charge_card", {"op": "charge_card", "id": "ord_8891"})
SELECT key, key = 'charge_card:2ea9930552276f4a6b493d08c2cbdb2e' AS ok
FROM unnest(ARRAY[
	idem_key('charge_card', 'ord_8891'),
	idem_key('charge_card', 'ord_8891', '{}'),
	idem_key('charge_card', 'ord_8891', fields => NULL),
	idem_key(identity => 'ord_8891', operation => 'charge_card')]) AS key;

-- key("a:b", {"op": "a:b", "id": "c"}), key("a", {"op": "a", "id": "b:c"})
SELECT idem_key('a:b', 'c') = 'a:b:be717d7ceb92e6f30868cff25926316c' AS ok,
	   idem_key('a', 'b:c') = 'a:64f2bbfdc2b492d0ec670c25371dba35' AS ok;

-- fields decide by value, not by spelling
SELECT idem_key('op', 'id', '{"a":1,"b":[2.50]}')
	 = idem_key('op', 'id', '{"b":[25e-1],"a":1.0}') AS same,
	   idem_key('op', 'id', '{"a":1}') = idem_key('op', 'id', '{"a":"1"}') AS other,
	   idem_key('op', 'id', '{"a":null}') = idem_key('op', 'id') AS other;

-- fields sort around op and id
SELECT key, key = 'op:' || left(encode(idem_fingerprint(
	'{"op":"op","id":"x","":0,"ID":1,"i":2,"io":3,"o":4,"opp":5,"z":6}'),
	'hex'), 32) AS ok
FROM idem_key('op', 'x',
			  '{"":0,"ID":1,"i":2,"io":3,"o":4,"opp":5,"z":6}') AS key;

-- the identity may hold anything, it is only hashed
SELECT idem_key('op', E'a\n\x01"\\') = 'op:' || left(encode(idem_fingerprint(
	jsonb_build_object('op', 'op', 'id', E'a\n\x01"\\')), 'hex'), 32) AS ok;

-- refused
SELECT idem_key('op', 'id', '[]');
SELECT idem_key('op', 'id', '"x"');
SELECT idem_key('op', 'id', 'null');
SELECT idem_key('op', 'id', '{"op":"x"}');
SELECT idem_key('op', 'id', '{"a":1,"id":null}');
SELECT idem_key('', 'id');
SELECT idem_key('  ', 'id');
SELECT idem_key(E'\t\n', 'id');
SELECT idem_key(E'a\nb', 'id');
SELECT idem_key(E'a\x7f', 'id');
SELECT idem_key('op', '');
SELECT idem_key('op', ' ');
SELECT idem_key(NULL, 'id');
SELECT idem_key('op', NULL);
SELECT octet_length(idem_key(repeat('x', 991), 'id'));
SELECT idem_key(repeat('x', 992), 'id');
SELECT idem_key(repeat('é', 496), 'id');

--
-- idem_step_key
--
SELECT idem_step_key('run-7', 0), idem_step_key('run-7', 12),
	   idem_step_key(step => 9223372036854775807, run_id => 'a:b');

-- no two steps of any runs share a key
SELECT count(*), count(DISTINCT idem_step_key(run, step))
FROM unnest('{r, r:, r:1, "r:1:", r:1:1, :, 1, 11}'::text[]) AS run,
	 generate_series(0, 120) AS step;

-- nor with a key of idem_key, whatever the names
SELECT idem_step_key('op', 9223372036854775807) ~ '^.+:[0-9]{1,19}$' AS step,
	   idem_key('op', 'x') ~ '^.+:[0-9a-f]{32}$' AS key;

-- refused
SELECT idem_step_key('run', -1);
SELECT idem_step_key('', 1);
SELECT idem_step_key(' ', 1);
SELECT idem_step_key(E'run\r', 1);
SELECT idem_step_key(NULL, 1);
SELECT idem_step_key('run', NULL);
SELECT octet_length(idem_step_key(repeat('x', 1021), 10));
SELECT idem_step_key(repeat('x', 1022), 10);

--
-- idem_call_key
--
-- key("send_mail", {"tool": "send_mail",
--                   "args": {"to": "a@example.com", "cc": []}})
SELECT key, key = 'send_mail:1d9c58f5166996c0b9909d025a5ed034' AS ok
FROM unnest(ARRAY[
	idem_call_key('send_mail', '{"to":"a@example.com","cc":[]}'),
	idem_call_key('send_mail', '{"cc":[],"to":"a@example.com"}', NULL)]) AS key;

-- the same with "turn": "turn-3"
SELECT key, key = 'send_mail:ddce6a67fbf1c3e9ff16c23c605b5f48' AS ok
FROM idem_call_key('send_mail', '{"to":"a@example.com","cc":[]}',
				   turn => 'turn-3') AS key;

-- key("ping", {"tool": "ping", "args": None}), and with "args": {}
SELECT idem_call_key('ping', 'null') = 'ping:75fab7e36707199959fe40d57416f410' AS ok,
	   idem_call_key('ping', '{}') = 'ping:66b1f14bdcd90dcdd8d07f92d854611e' AS ok;

-- a call is no operation on the same name
SELECT idem_call_key('op', '{}') = idem_key('op', 'op') AS same,
	   idem_call_key('t', '{"turn":"x"}') = idem_call_key('t', '{}', 'x') AS same;

-- refused
SELECT idem_call_key('', '{}');
SELECT idem_call_key(E'a\x1f', '{}');
SELECT idem_call_key('t', '{}', '');
SELECT idem_call_key(NULL, '{}');
SELECT idem_call_key('t', NULL);
SELECT idem_call_key(repeat('x', 992), '{}');

-- the codes behind the messages
DO $$
DECLARE
	call text;
	code text;
BEGIN
	FOREACH call IN ARRAY ARRAY[
		$q$idem_key('op', 'id', '[]')$q$, $q$idem_key('op', 'id', '{"op":1}')$q$,
		$q$idem_key('', 'id')$q$, $q$idem_key(E'\x01', 'id')$q$,
		$q$idem_key('op', '')$q$, $q$idem_key(repeat('x', 992), 'id')$q$,
		$q$idem_key(NULL, 'id')$q$, $q$idem_key('op', NULL)$q$,
		$q$idem_step_key('run', -1)$q$, $q$idem_step_key(NULL, 1)$q$,
		$q$idem_call_key('', '{}')$q$, $q$idem_call_key('t', '{}', ' ')$q$,
		$q$idem_call_key('t', NULL)$q$]
	LOOP
		BEGIN
			EXECUTE 'SELECT ' || call;
			code := 'none';
		EXCEPTION WHEN OTHERS THEN
			code := SQLSTATE;
		END;
		RAISE NOTICE '% %', code, call;
	END LOOP;
END $$;

--
-- Fit for generated columns, expression indexes and parallel plans
--
SELECT proname, provolatile, proparallel, proisstrict
FROM pg_proc
WHERE proname IN ('idem_canonical', 'idem_fingerprint', 'idem_key',
				  'idem_step_key', 'idem_call_key')
ORDER BY proname COLLATE "C";

CREATE TEMP TABLE keyed (
	id text,
	request jsonb,
	key text GENERATED ALWAYS AS (idem_key('charge', id)) STORED);
CREATE UNIQUE INDEX ON keyed (idem_fingerprint(request));
INSERT INTO keyed VALUES ('1', '{"a":1}'), ('2', '{"a":2}');
SELECT id, key FROM keyed ORDER BY id;
INSERT INTO keyed VALUES ('3', '{"a":1.0}');
DROP TABLE keyed;

-- a compressed and toasted value is the same value
CREATE TEMP TABLE toasted AS
	SELECT jsonb_agg(i % 10) AS request FROM generate_series(1, 20000) AS i;
SELECT idem_fingerprint(request) = sha256(convert_to(
	'[' || (SELECT string_agg((i % 10)::text, ',' ORDER BY i)
			FROM generate_series(1, 20000) AS i) || ']', 'UTF8')) AS same
FROM toasted;
DROP TABLE toasted;

-- the owner of the functions can have them called for NULL as well
BEGIN;
ALTER FUNCTION idem_canonical(jsonb) CALLED ON NULL INPUT;
ALTER FUNCTION idem_fingerprint(jsonb) CALLED ON NULL INPUT;
ALTER FUNCTION idem_memory_end(text, timestamptz) CALLED ON NULL INPUT;
ALTER FUNCTION idem_may_act(text) CALLED ON NULL INPUT;
SELECT idem_canonical(NULL) IS NULL AND idem_fingerprint(NULL) IS NULL
	AND idem_memory_end(NULL, NULL) IS NULL AND idem_may_act(NULL) IS NULL AS none;
ROLLBACK;
