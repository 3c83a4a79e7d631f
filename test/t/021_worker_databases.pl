# The worker and other people's databases: it is in nobody's way.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time);
use Test::More;

my $node = new_server('main');
my ($offset, $started);

# DROP and the like must be quick: a server that hangs fails the test instead
sub quickly
{
	my ($sql) = @_;
	my ($ret, $stdout, $stderr) =
	  $node->psql('postgres', "SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s'; $sql");
	return $ret == 0 ? '' : $stderr;
}

$node->safe_psql('postgres', 'CREATE EXTENSION idem_tool');
wait_rounds($node, 'postgres', 1);

# --- DROP of any database (1)

my $errors = '';
for (1 .. 5)
{
	$node->safe_psql('postgres', 'CREATE DATABASE plain');
	$errors .= quickly('DROP DATABASE plain');
}
is($errors, '', 'databases can be created and dropped');
is(count_in_log($node, qr/still waiting for backend/),
	0, 'nobody waits for the launcher');

# --- DROP of a database that is being swept (2, N1), with FORCE (20)

# first off, so that the rows are still lapsed in the copies
$node->safe_psql('postgres', 'CREATE DATABASE stock');
$node->safe_psql('postgres', 'ALTER DATABASE stock SET idem_tool.worker = off');
$node->safe_psql('stock', 'CREATE EXTENSION idem_tool');
$node->safe_psql('stock', lapsed('lapsed', 10000));
$errors = '';
for my $i (1 .. 10)
{
	$node->safe_psql('postgres', 'CREATE DATABASE x TEMPLATE stock');
	$node->poll_query_until('postgres',
		"SELECT swept_expired > 0 FROM idem_stats WHERE datname = 'x'");
	$errors .= quickly($i % 2 ? 'DROP DATABASE x' : 'DROP DATABASE x WITH (FORCE)');
}
is($errors, '', 'a database can be dropped in the middle of a round');
is(count_in_log($node, qr/signal 11|PANIC/), 0, 'no crash');
ok( $node->poll_query_until('postgres',
		'SELECT count(*) = 0 FROM idem_stats WHERE datname IS NULL'),
	'counters of dropped databases are dropped');

# --- a database as a template, again and again (3, N12)

$node->safe_psql('postgres', 'CREATE DATABASE source');
$node->safe_psql('source', 'CREATE EXTENSION idem_tool');
$node->safe_psql('source', lapsed('lapsed', 2000));
$errors = '';
$errors .= quickly("CREATE DATABASE copy$_ TEMPLATE source") for 1 .. 5;
is($errors, '', 'a database that is swept can be copied');
for (1 .. 5)
{
	$node->safe_psql("copy$_", lapsed('more', 1));
	ok( $node->poll_query_until("copy$_",
			"SELECT bool_and(status = 'expired') FROM idempotency_keys"),
		"copy $_ is swept");
}

# --- RENAME and SET TABLESPACE (4)

my $space = PostgreSQL::Test::Utils::tempdir_short();
$node->safe_psql('postgres', "CREATE TABLESPACE space LOCATION '$space'");
$errors = '';
for (1 .. 3)
{
	$errors .= quickly('ALTER DATABASE source RENAME TO renamed');
	$errors .= quickly('ALTER DATABASE renamed SET TABLESPACE space');
	$errors .= quickly('ALTER DATABASE renamed SET TABLESPACE pg_default');
	$errors .= quickly('ALTER DATABASE renamed RENAME TO source');
	$node->safe_psql('postgres',
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idem_tool worker'"
	);
}
is($errors, '', 'a database that is swept can be renamed and moved');

# --- databases that cannot be served: template0, and a half dropped one (5, 6)

$node->safe_psql('postgres', 'CREATE DATABASE half');
$node->safe_psql('postgres',
	"UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'half'");
$node->reload;
# what is under way may still fail
wait_rounds($node, 'postgres', 5);
$offset = -s $node->logfile;
wait_rounds($node, 'postgres', 10);
is(count_in_log($node, qr/FATAL|ERROR/, $offset),
	0, 'no attempt at databases that nobody can connect to');
ok(quickly('DROP DATABASE half') eq '', 'a half dropped one can be dropped');

# --- a broken database (18)

$node->safe_psql('postgres', 'CREATE DATABASE broken');
$node->safe_psql('broken', 'CREATE EXTENSION idem_tool');
$node->safe_psql('broken',
	'ALTER TABLE idempotency_keys ALTER COLUMN fingerprint TYPE text USING NULL');
$node->reload;
$offset = -s $node->logfile;
$started = time;
wait_rounds($node, 'postgres', 30);
my $died = count_in_log($node, qr/ERROR:  .*does not have the columns/, $offset);
cmp_ok($died, '>', 0, 'a broken database is reported');
# of 2 s, 4 s, 8 s and so on
cmp_ok($died, '<=', 2 + log((time - $started) / 2 + 1) / log(2),
	'with pauses that become longer');
$node->safe_psql('postgres', lapsed('other', 1));
ok( $node->poll_query_until('postgres',
		"SELECT status = 'expired' FROM idempotency_keys WHERE key = 'other1'"),
	'the others are served');

# --- a database that somebody holds the lock of stops nobody else

my $psql = $node->background_psql('postgres');
$psql->query_safe("BEGIN; COMMENT ON DATABASE copy1 IS 'held'; SELECT 1");
ok(wait_rounds($node, 'postgres', 5), 'a busy database does not stop the launcher');
$psql->query_safe('COMMIT');
$psql->quit;

$node->stop('fast');
done_testing();
