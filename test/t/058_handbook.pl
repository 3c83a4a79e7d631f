# The handbook's steps that touch callers who are at work, or their keys' only
# copy: a role that owns keys is replaced, one must go, and a backup is made.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use IdemTest::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my @steps = block_by('058_handbook', 'docs/operations.md');
my $node = PostgreSQL::Test::Cluster->new('handbook');
my $dir = PostgreSQL::Test::Utils::tempdir();

# SQL as a superuser, or as somebody else
sub run_as
{
	my ($sql, $role) = @_;

	return $node->safe_psql('shop', $sql, extra_params => $role ? [ '-U', $role ] : []);
}

# The next step, which must begin so
sub step
{
	my ($text) = @_;
	my $step = shift @steps;

	like($step, qr/^\Q$text/, "step: $text");
	return $step;
}

sub app
{
	return session($node, dbname => 'shop', user => 'app');
}

$node->init;
$node->start;
$node->safe_psql('postgres', $_) foreach
  (map { "CREATE ROLE $_ LOGIN" } qw(dba app ops prometheus leaver reader)),
  'CREATE DATABASE shop OWNER dba';
run_as($_->{code})
  foreach grep { ($_->{group} // '') eq 'install' } blocks('README.md');
my ($roles) = grep { $_->{code} =~ /^CREATE ROLE app_keys/ } blocks('docs/operations.md');
run_as($roles->{code});

#
# Another role takes the place of the one that owns the keys
#
my ($stage, %token) = (0);

# At each stage: everybody reserves, and settles what anybody has reserved
sub all_go_on
{
	my ($what, @callers) = @_;

	$stage++;
	foreach my $i (0 .. $#callers)
	{
		my $key = "$stage-$i";

		$token{$key} = $callers[$i]->try("SELECT token FROM idem_reserve('$key')");
		like($token{$key}, qr/^\d{1,4}$/, "$what: caller $i reserves");
		is($callers[$i]->try("SELECT status FROM idem_reserve('done')"), 'done',
			'... and hears what was recorded');
	}
	my ($caller) = @callers[ $stage % @callers ];
	my ($oldest) = sort keys %token;
	foreach my $key ($oldest eq "$stage-0" ? $oldest : ($oldest, "$stage-0"))
	{
		is($caller->try("SELECT idem_complete('$key', token => $token{$key})"), 't',
			"... one of them completes $key");
		delete $token{$key};
	}
	return;
}

my $old = app();
$old->query("SELECT idem_complete('done', token => token) FROM idem_reserve('done')");
$old->query("SELECT idem_reserve('early')");
all_go_on('before', $old, $old);
run_as(step('CREATE ROLE shop_keys'));
my $new = app();
is($new->query('SHOW idem_tool.owner'), 'shop_keys', 'new sessions have the new owner');
all_go_on('both roles', $old, $new);
run_as(step('UPDATE idempotency_keys'), 'dba');
all_go_on('keys moved', $old, $new);
$old->drop;
run_as('UPDATE idempotency_keys SET owner = $$shop_keys$$ WHERE owner = $$app_keys$$', 'dba');
run_as(step('DROP ROLE app_keys'));
all_go_on('old role dropped', $new, app());

# who monitors sees them and settles none
my $monitor = session($node, dbname => 'shop', user => 'prometheus');
is($monitor->query('SELECT count(*) > 5 FROM idempotency_keys'), 't', 'a monitor sees the keys');
is($monitor->try("SELECT idem_release('early', 1)"), '42501', '... and may settle none');
run_as('GRANT app TO prometheus');
isnt($monitor->try("SELECT idem_release('early', 1)"), '42501',
	'... as it might, had it been granted the caller');

#
# A role must go
#
run_as("SELECT idem_grant('leaver'); GRANT shop_keys TO leaver");
run_as("SELECT idem_complete('left', '1') FROM idem_reserve('left')", 'leaver');
run_as(step(q{UPDATE idempotency_keys SET owner = 'shop_keys' WHERE owner = 'leaver'}));
is($new->query("SELECT result FROM idem_reserve('left')"), '1', 'what he left is there');
my $orphans = step('SELECT owner, count(*)');
is(run_as($orphans, 'dba'), '', 'no key is left without an owner');
run_as("CREATE ROLE gone LOGIN; SELECT idem_grant('gone')");
run_as("SELECT idem_reserve('orphan')", 'gone');
run_as('DROP OWNED BY gone; DROP ROLE gone');
is(run_as($orphans, 'dba'), 'gone|1', '... or it would be seen');

#
# A backup
#
run_as(step('CREATE ROLE backup'));
my ($command) = step('pg_dump') =~ /(.*)/;
local $ENV{PGHOST} = $node->host;
local $ENV{PGPORT} = $node->port;
run_as('GRANT pg_read_all_data TO reader');

# What pg_dump says, and how many keys are in its dump
sub dumped
{
	my ($role, @option) = @_;
	my @words = map { s/=backup$/=$role/r } map { s{=shop\.sql$}{=$dir/shop.sql}r }
	  split(/ /, $command);
	my (undef, $stderr) = run_command([ @words, @option ]);
	my ($rows) = slurp_file("$dir/shop.sql") =~ /^COPY idem\.idempotency_keys .*?\n(.*?)^\\\.$/ms;

	return ($stderr, scalar(() = ($rows // '') =~ /\n/g));
}

my $keys = run_as('SELECT count(*) FROM idempotency_keys');
is_deeply([ dumped($_) ], [ '', $keys ], "$_ dumps all keys") foreach 'backup', 'dba';
like((dumped('reader'))[0], qr/row-level security/, 'another reader is stopped');
is_deeply([ dumped('reader', '--enable-row-security') ], [ '', 0 ],
	'... and without that he would dump none');

is(scalar(@steps), 0, 'all steps were taken');
$node->stop('fast');

done_testing();
