-- a key that is in progress
SELECT status, retry_after FROM idem_reserve('hot');
