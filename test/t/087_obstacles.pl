# Who has no privilege of ours cannot get in anybody's way.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Attack;
use Test::More;

my $node = start_arena('obstacles',
	conf => "shared_preload_libraries = 'idem_tool'\nidem_tool.worker = off");
my $database = new_arena();
my $superuser = as_role($database);
my $nobody = as_role($database, 'nobody');
my $ops = as_role($database, 'ops');

# Whoever may make a temporary function locks the extension.  That keeps it from
# being dropped, and nothing else.
as_role($database, 'app')->query(q{SELECT FROM idem.idem_reserve('lapsed', '1 us')});
$nobody->query($_)
  foreach 'BEGIN',
  q{CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'},
  'ALTER FUNCTION pg_temp.f() DEPENDS ON EXTENSION idem_tool';
is($ops->try('SELECT expired FROM idem.idem_sweep()'), '1', 'the sweep does without a lock on the extension');
is($superuser->query('SELECT swept_expired FROM idem.idem_stats WHERE datname = current_database()'), '1',
	'... and it is counted');
is( as_role($database, 'victim')->query(q{SELECT status FROM idem.idem_reserve('honest')}),
	'reserved', '... as do callers');
is($ops->try(q{SELECT idem.idem_register('honest')}), '', '... and operators');
$nobody->query('ROLLBACK');

# PostgreSQL locks a table before it looks at privileges, but finds it only with
# USAGE on its schema.  A caller's open transaction is what would be waited for.
my $victim = as_role($database, 'victim');
my @statements = map { s/TABLE_/idem.idempotency_keys/gr } (
	'CREATE TRIGGER t BEFORE INSERT ON TABLE_ FOR EACH ROW EXECUTE FUNCTION nobody.trap()',
	'CREATE TABLE nobody.child (key text, scope text, FOREIGN KEY (key, scope) REFERENCES TABLE_)',
	'DO $$ BEGIN LOCK TABLE TABLE_; END $$',
	'DO $$ BEGIN LOCK TABLE TABLE_ IN SHARE MODE; END $$',
	'TRUNCATE TABLE_',
	'ALTER TABLE TABLE_ ADD COLUMN more int',
	'CREATE INDEX ON TABLE_ (scope)',
	'CREATE RULE r AS ON INSERT TO TABLE_ DO ALSO SELECT 1',
	'CREATE POLICY p ON TABLE_',
	'CREATE STATISTICS nobody.s ON key, scope FROM TABLE_',
	'VACUUM FULL TABLE_',
	'CLUSTER TABLE_ USING idempotency_keys_pkey',
	'REINDEX TABLE TABLE_',
	'COMMENT ON TABLE TABLE_ IS NULL',
	'DROP TABLE TABLE_');

$victim->query('BEGIN');
$victim->query(q{SELECT FROM idem.idem_reserve('honest 2')});
$nobody->query(q{SET statement_timeout = '2s'});
foreach my $statement (@statements)
{
	is($nobody->try($statement), '42501', "refused at once: $statement");
}

# the control
$superuser->query('GRANT USAGE ON SCHEMA idem TO nobody');
is($nobody->try($statements[0]), '57014', 'with USAGE he waits, and others for him');
$superuser->query('REVOKE USAGE ON SCHEMA idem FROM nobody');
$victim->query('COMMIT');

# What else anybody can lock: the advisory locks that users have, all of those
# keys that he could guess
$nobody->query('BEGIN');
$nobody->query('SELECT pg_advisory_xact_lock(i) FROM generate_series(-500, 500) AS i');
$nobody->query('SELECT pg_advisory_xact_lock(i, j) FROM generate_series(0, 20) AS i, generate_series(0, 20) AS j');
is( as_role($database, 'victim')->query(q{SELECT status FROM idem.idem_reserve('honest 3')}),
	'reserved', "users' advisory locks are none of ours");
$nobody->query('ROLLBACK');

# One who waits for nothing, and one who cannot even look: not a caller
foreach my $call (q{idem_reserve('k')}, q{idem_lookup('k')}, q{idem_key('a', 'b')}, 'idem_sweep()',
	'idem_wake_worker()', 'idem_stats_read()')
{
	is($nobody->try("SELECT idem.$call"), '42501', "nobody may not $call");
}
done_testing();
