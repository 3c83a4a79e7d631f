# The statements for many keys in the reference: one row for each element, in
# its order; a refused key does not fail the others; no deadlocks.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($reserve, $complete) = block_by('012_batches', 'docs/reference.md');
like($reserve, qr/^PREPARE reserve_many/m, 'the documented reservation');
like($complete, qr/^PREPARE complete_many/m, 'and completion');

my $node = PostgreSQL::Test::Cluster->new('batches');
$node->init(extra => [ '--encoding=UTF8', '--no-locale' ]);
$node->append_conf('postgresql.conf', 'deadlock_timeout = 100ms');
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION idem_tool');

# Run SQL in a session that knows the statements
sub batch
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', "$reserve $complete $sql");
}

# --- in order, a key twice, a rival's key (C3)

my $rival = $node->background_psql('postgres');
$rival->query_safe("BEGIN; SELECT FROM idem_reserve('rival')");
$node->safe_psql('postgres', <<'SQL');
SELECT idem_complete('old', '"was done"', token) FROM idem_reserve('old');
SELECT idem_release('back', token) FROM idem_reserve('back');
SQL
is( batch(q(EXECUTE reserve_many('{x,rival,x,old,a,back}'))),
	"x|reserved||4|1\nrival|in_progress|||\nx|in_progress|||1\n"
	  . "old|done|\"was done\"||1\na|reserved||5|1\nback|reserved||6|2",
	'one row for each, in order');
$rival->query_safe('ROLLBACK');

# --- a lost key does not keep the others from being completed

$node->safe_psql('postgres', <<'SQL');
SELECT idem_abandon('a', 5);
SELECT FROM idem_reserve('a');
SQL
is( batch(
		q(EXECUTE complete_many('{x,a,back,none}', '{1,2,3,4}', '{4,5,6,7}', '{1,1,2,1}'))
	),
	"x|t\na|f\nback|t\nnone|f",
	'what is still ours is completed');
is( $node->safe_psql('postgres',
		"SELECT key, status, result FROM idempotency_keys ORDER BY key"),
	"a|in_progress|\nback|done|3\nold|done|\"was done\"\nx|done|1",
	'and nothing else');
is( batch(
		q(EXECUTE complete_many('{x,back}', '{1,3}', '{4,6}', '{1,2}'))),
	"x|f\nback|f", 'a second time there is nothing to do');

# --- two batches of the same keys, one backwards (C1)

$node->safe_psql('postgres',
	'CREATE TABLE won (key text PRIMARY KEY); CREATE TABLE kept (key text)');
my $dir = PostgreSQL::Test::Utils::tempdir;
$reserve =~ s/PREPARE reserve_many\(text\[\]\) AS\n//;
$reserve =~ s/;\s*$//;
foreach my $order ('ASC', 'DESC')
{
	my $keys =
	  "(SELECT array_agg('k:' || :k || ':' || i ORDER BY i $order) FROM generate_series(1, 20) i)";
	append_to_file("$dir/$order.sql",
			"\\set k random(1, 60)\nBEGIN;\n"
		  . "INSERT INTO won SELECT key FROM ("
		  . ($reserve =~ s/\$1/$keys/gr)
		  . ") r WHERE status = 'reserved';\n"
		  . "SELECT count(*) AS n FROM won WHERE key LIKE 'k:' || :k || ':%' \\gset\n"
		  . "\\if :k % 3 = 0\nROLLBACK;\n\\else\nCOMMIT;\n\\endif\n");
}
$node->command_checks_all(
	[   'pgbench', '-n', '-c', 4, '-j', 2, '-t', 250,
		'-f', "$dir/ASC.sql", '-f', "$dir/DESC.sql", 'postgres' ],
	0,
	[qr/number of transactions actually processed: 1000\/1000/],
	[qr/^$/],
	'batches in opposite orders do not deadlock');
is( $node->safe_psql('postgres',
		"SELECT count(*), count(DISTINCT key) FROM won"),
	$node->safe_psql('postgres', <<'SQL'), 'each key was won once, by a transaction that committed');
SELECT count(*), count(*) FROM idempotency_keys WHERE key LIKE 'k:%' AND status = 'in_progress'
SQL
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM won'),
	'>', 300, 'and many were');

$node->stop('fast');
done_testing();
