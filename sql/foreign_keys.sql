--
-- Foreign keys of an administrator's, to the table and from it.
--
\pset format unaligned
\pset null '(null)'
CREATE EXTENSION amcheck;

--
-- From the table: scopes are tenants
--
CREATE TABLE tenants (name text COLLATE "C" PRIMARY KEY,
					  active boolean DEFAULT true);
INSERT INTO tenants VALUES ('t1'), ('t2');
ALTER TABLE idempotency_keys ADD CONSTRAINT tenant FOREIGN KEY (scope)
	REFERENCES tenants;
SELECT status, token FROM idem_reserve('k', scope => 't1') \gset
SELECT :'status' AS status;
SELECT error_of($$SELECT idem_reserve('k', scope => 'nobody')$$);
SELECT error_of($$SELECT idem_reserve('k')$$);
SELECT scope, key FROM idempotency_keys;
-- each way to write
SELECT idem_extend('k', '1 hour', :token, 't1') IS NOT NULL AS extended;
SELECT idem_release('k', :token, 't1');
SELECT status, token FROM idem_reserve('k', scope => 't1') \gset
SELECT idem_abandon('k', :token, 't1');
SELECT status, token FROM idem_reserve('k', scope => 't1') \gset
SELECT idem_complete('k', '1', :token, scope => 't1');
SELECT status FROM idem_reserve('k', scope => 't1');
SELECT let_pass('k', 't1');
SELECT status, attempt FROM idem_reserve('k', scope => 't1');
-- the parent's side
DELETE FROM tenants WHERE name = 't1';
UPDATE tenants SET name = 't3' WHERE name = 't2';
UPDATE tenants SET active = false;
-- in one transaction with its parent
BEGIN;
INSERT INTO tenants VALUES ('t4');
SELECT status FROM idem_reserve('k', scope => 't4');
COMMIT;
-- a failed one leaves nothing; the savepoint's work goes on
BEGIN;
SAVEPOINT s;
SELECT outcome_of($$SELECT idem_reserve('k', scope => 'nobody')$$);
SELECT status FROM idem_reserve('k 2', scope => 't1');
COMMIT;
SELECT scope, key FROM idempotency_keys ORDER BY scope, key;
ALTER TABLE idempotency_keys DROP CONSTRAINT tenant;

-- deferred: checked at the commit
ALTER TABLE idempotency_keys ADD CONSTRAINT tenant FOREIGN KEY (scope)
	REFERENCES tenants
	ON UPDATE CASCADE ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
BEGIN;
SELECT status FROM idem_reserve('k', scope => 't5');
INSERT INTO tenants VALUES ('t5');
COMMIT;
SELECT status FROM idem_reserve('k', scope => 't5');
BEGIN;
SELECT status FROM idem_reserve('k', scope => 't6');
COMMIT;
SELECT count(*) FROM idem_lookup('k', 't6');
-- cascades move and remove keys
UPDATE tenants SET name = 't7' WHERE name = 't5';
SELECT status FROM idem_reserve('k', scope => 't7');
SELECT count(*) FROM idem_lookup('k', 't5');
DELETE FROM tenants WHERE name = 't7';
SELECT count(*) FROM idem_lookup('k', 't7');
-- seen at once in the transaction that does it
BEGIN;
DELETE FROM tenants WHERE name = 't4';
SELECT count(*) FROM idem_lookup('k', 't4');
ROLLBACK;
SELECT status FROM idem_reserve('k', scope => 't4');
ALTER TABLE idempotency_keys DROP CONSTRAINT tenant;

--
-- To the table: what was done under a key
--
TRUNCATE idempotency_keys;
CREATE TABLE effects (scope text COLLATE "C", key text COLLATE "C", what text,
	CONSTRAINT effect_key FOREIGN KEY (scope, key)
	REFERENCES idempotency_keys (scope, key));
BEGIN;
SELECT status FROM idem_reserve('e');
INSERT INTO effects VALUES ('', 'e', 'charged');
SELECT idem_complete('e', '1');
COMMIT;
INSERT INTO effects VALUES ('', 'nothing', 'charged');
-- with a row that refers to it each write goes on
SELECT status, result FROM idem_reserve('e');
SELECT let_pass('e');
SELECT status, token FROM idem_reserve('e') \gset
SELECT idem_extend('e', '1 hour', :token) IS NOT NULL AS extended;
SELECT idem_release('e', :token);
SELECT status, token FROM idem_reserve('e') \gset
SELECT idem_abandon('e', :token);
SELECT status, token FROM idem_reserve('e') \gset
SELECT idem_fail('e', '1', :token);
SELECT status, attempt, result FROM idem_reserve('e');
DELETE FROM idempotency_keys WHERE key = 'e';
SELECT status FROM idem_reserve('e');
-- a reservation taken back takes its child along
BEGIN;
SAVEPOINT s;
SELECT status FROM idem_reserve('f');
INSERT INTO effects VALUES ('', 'f', 'charged');
ROLLBACK TO s;
INSERT INTO effects VALUES ('', 'f', 'charged');
ROLLBACK;
-- cascading
ALTER TABLE effects DROP CONSTRAINT effect_key,
	ADD CONSTRAINT effect_key FOREIGN KEY (scope, key)
	REFERENCES idempotency_keys (scope, key) ON DELETE CASCADE;
DELETE FROM idempotency_keys WHERE key = 'e';
SELECT count(*) FROM effects;

SELECT bt_index_parent_check('idempotency_keys_pkey', heapallindexed => true);
SELECT count(*) FROM verify_heapam('idempotency_keys');
TRUNCATE idempotency_keys CASCADE;
DROP TABLE effects, tenants;
DROP EXTENSION amcheck;
