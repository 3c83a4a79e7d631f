--
-- Where the library is not loaded in advance: sessions load it when they need
-- it, and there are no counters.  On other servers there is nothing to see.
--
\pset format unaligned
SELECT current_setting('shared_preload_libraries') ~ 'idem_tool' AS skip \gset
\if :skip
\quit
\endif

-- nobody counts, and nobody can be woken
TABLE idem_stats;
SELECT idem_wake_worker();

SELECT status FROM idem_reserve('k');
-- a placeholder that an ordinary user has set for a superuser's setting is
-- not taken over by the library
\c -
CREATE ROLE regress_idem_user;
SET ROLE regress_idem_user;
SET idem_tool.unknown_ttl = '1h';
SET idem_tool.scope = 'x';
RESET ROLE;
SELECT count(*) FROM idem_lookup('k');
SHOW idem_tool.unknown_ttl;
SHOW idem_tool.scope;
\c -
DROP ROLE regress_idem_user;
-- nor is a scope that could not be one
SET idem_tool.scope = '  ';
SELECT count(*) FROM idem_lookup('k');
SHOW idem_tool.scope;
RESET idem_tool.scope;

TRUNCATE idempotency_keys;
