--
-- An invoice is charged once.  Two phases.
--

\set VERBOSITY sqlstate
SELECT clean();

-- tokens grow, and differ from run to run: keep them in variables
SELECT token AS mine FROM begin_charge('inv_1', 42) \gset
SELECT status, attempt, maybe_ran, expires_at - reserved_at AS lease
FROM idem_lookup('charge:inv_1');

-- a second caller
SELECT status, attempt, token, retry_after BETWEEN 1 AND 120 AS later
FROM begin_charge('inv_1', 42);

-- the outcome, recorded again, and heard
SELECT end_charge('inv_1', :mine, '{"charge": "ch_1"}');
SELECT end_charge('inv_1', :mine, '{"charge": "ch_1"}');
SELECT status, result FROM begin_charge('inv_1', 42);

-- a time-out: the next caller takes over at once, and is told
SELECT token AS mine FROM begin_charge('inv_2', 42) \gset
SELECT idem_abandon('charge:inv_2', :mine);
SELECT status, attempt, maybe_ran, token > :mine AS newer
FROM begin_charge('inv_2', 42);

-- a machine that was started again: it takes its own attempt over
SELECT status FROM begin_charge('inv_3', 42, 'worker 1');
SELECT status FROM begin_charge('inv_3', 42, 'worker 2');
SELECT status, attempt, maybe_ran FROM begin_charge('inv_3', 42, 'worker 1');

-- a caller who died: his lease lapses, and is taken over
SELECT token AS his FROM begin_charge('inv_4', 42) \gset
SELECT let_pass('charge:inv_4');
SELECT status, attempt FROM idem_lookup('charge:inv_4');
SELECT token AS mine FROM begin_charge('inv_4', 42) \gset
-- he was not dead, only late: he is refused, and his receipt with him
SELECT end_charge('inv_4', :his, '{"charge": "ch_4"}');
SELECT count(*) FROM receipts WHERE invoice = 'inv_4';
SELECT end_charge('inv_4', :mine, '{"charge": "ch_5"}');

-- late, but nobody has taken over: it is the truth
SELECT token AS mine FROM begin_charge('inv_5', 42) \gset
SELECT let_pass('charge:inv_5');
SELECT end_charge('inv_5', :mine, '{"charge": "ch_6"}');

-- a charge that must not be tried again once its outcome is unknown
SET idem_tool.takeover = 0;
SELECT token AS mine FROM begin_charge('inv_6', 42) \gset
SELECT idem_abandon('charge:inv_6', :mine);
SELECT status, attempt, maybe_ran FROM begin_charge('inv_6', 42);
RESET idem_tool.takeover;

-- what became of each
SELECT key, status, attempt, result FROM idempotency_keys
ORDER BY key COLLATE "C";
