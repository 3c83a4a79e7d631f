# What logical decoding tells of a reservation that plain SQL forestalled:
# nothing.  A subscriber has the rival's row, and would take it away again.  And
# of rows that the sweep deletes: which they were.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use Test::More;

my $node = new_node('decoding', conf => 'wal_level = logical');
my $caller = session($node);
my $rival = session($node);

# holds up the caller's insertions between his look and his row
$rival->query(<<'END');
CREATE FUNCTION at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(7);
	RETURN NEW;
END $$;
CREATE TRIGGER at_gate BEFORE INSERT ON idempotency_keys FOR EACH ROW
	WHEN (NEW.token <> 70) EXECUTE FUNCTION at_gate();
END
$rival->query(<<'END');
SELECT pg_create_logical_replication_slot('slot', 'test_decoding')
END
$rival->query('SELECT pg_advisory_lock(7)');

$caller->send("SELECT status, attempt FROM idem_reserve('k')");
ok(eventually($rival, <<'END'), 'a caller is at the gate');
SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory'
	AND objid = 7 AND NOT granted)
END
$rival->query(<<'END');
INSERT INTO idempotency_keys (key, status, attempt, maybe_ran, token, owner,
	created_at, reserved_at, expires_at)
VALUES ('k', 'done', 7, false, 70, current_user, now(), now(), 'infinity')
END
$rival->query('SELECT pg_advisory_unlock(7)');
is(join(' ', @{ $caller->answer->{rows}[0] }), 'done 7',
	'the key was forestalled');

is($rival->query(<<'END'), 'INSERT', 'subscribers hear of one row');
SELECT string_agg(substring(data, 'idempotency_keys: (\w+)'), ' ')
FROM pg_logical_slot_get_changes('slot', NULL, NULL)
WHERE data LIKE 'table public.idempotency_keys:%'
END

# The sweep, where no trigger wants a statement.  It waits for nobody who has an
# index, although the columns of the replica identity are those of one.
my $sweep = 'SELECT expired, deleted FROM idem_sweep()';

$rival->query($_) foreach 'DROP TRIGGER at_gate ON idempotency_keys',
  'CREATE INDEX another ON idempotency_keys (created_at)',
  q{UPDATE idempotency_keys SET expires_at = '2020-01-01'},
  q{SELECT pg_logical_slot_get_changes('slot', NULL, NULL)},
  'BEGIN', 'ALTER INDEX another SET TABLESPACE pg_default';
is($caller->query($sweep), '0|0', 'nothing is deleted while an index is locked');
$rival->query('COMMIT');

$rival->query($_) foreach <<'END', 'ALTER TABLE idempotency_keys REPLICA IDENTITY NOTHING';
CREATE PUBLICATION deletions FOR TABLE idempotency_keys WITH (publish = 'delete')
END
$rival->query(<<'END');
INSERT INTO idempotency_keys (key, status, attempt, maybe_ran, token, owner,
	created_at, reserved_at, expires_at)
VALUES ('lapsed', 'in_progress', 1, false, 71, current_user, now(), now(), now())
END
is($caller->query($sweep), '1|0', 'nor what subscribers could not be told of');
$rival->query('ALTER TABLE idempotency_keys REPLICA IDENTITY DEFAULT');
is($caller->query($sweep), '0|1', 'then it is');

# the sweep's commit does not wait for the disk, where decoding reads: another's does
$rival->query('DROP PUBLICATION deletions');
is($rival->query(<<'END'), q{DELETE: scope[text]:'' key[text]:'k'}, 'and they hear of it');
SELECT string_agg(substring(data, 'idempotency_keys: (DELETE.*)'), ' ')
FROM pg_logical_slot_get_changes('slot', NULL, NULL)
WHERE data LIKE 'table public.idempotency_keys:%'
END

$node->stop;
done_testing();
