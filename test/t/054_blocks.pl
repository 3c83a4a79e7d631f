# Every code block of the documentation says what a test does with it, and those
# that are to be run do what they say, in a database with the extension
# installed as README.md does it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my @blocks = map { blocks($_) } documents();
my @to_run = grep { $_->{do} eq 'run' } @blocks;
my @install = grep { $_->{group} eq 'install' } @to_run;
my $dir = PostgreSQL::Test::Utils::tempdir();
my $node = PostgreSQL::Test::Cluster->new('blocks');
my @roles = qw(my_app dba app app_owner shop_owner leaver ops prometheus);

#
# The groups: what is there before them, and what has come of them
#
my %groups = (
	readme => {
		after => <<'END',
SELECT * FROM orders ORDER BY id;
SELECT key, status, result FROM idem.idempotency_keys ORDER BY key;
END
		is => <<'END' },
8891|42
8892|42
charge:inv_42|done|{"charge": "ch_1"}
order:8891|done|{"order": 8891}
order:8892|done|{"id": 8892, "amount": 42}
END
	tools => {
		before => <<'END',
CREATE SCHEMA app;
CREATE TABLE app.ledger (what text);
SELECT format('CREATE FUNCTION app.%1$s(args jsonb) RETURNS jsonb LANGUAGE sql AS $$
	INSERT INTO app.ledger VALUES (''%1$s '' || (args ->> ''invoice''))
	RETURNING jsonb_build_object(''at'', clock_timestamp()) $$', tool)
FROM unnest('{charge,remind,get_invoice}'::text[]) AS tool \gexec
GRANT USAGE ON SCHEMA app TO my_app;
GRANT INSERT, SELECT ON app.ledger TO my_app;
SELECT idem_grant('my_app', 'operator');
END
		# a write that is called again has no effect
		after => <<'END',
SELECT count(DISTINCT idem_call('charge', '{"invoice": "inv_5512"}', key => idem_key('charge', 'inv_5512')))
	+ count(DISTINCT idem_call('remind', '{"invoice": "inv_5512"}')) FROM generate_series(1, 3);
SELECT what FROM app.ledger ORDER BY what COLLATE "C";
SELECT status, expires_at - completed_at > interval '6 days'
FROM idem.idempotency_keys WHERE key = 'mail:inv_5512';
END
		is => <<'END' },
2
charge inv_5511
charge inv_5512
get_invoice inv_5512
remind inv_5512
done|t
END
	tuning => {},
	operations => {
		before => <<'END',
GRANT app_owner TO app;
SELECT idem_grant('app');
SET ROLE app;
SET idem_tool.owner = 'app_owner';
SELECT idem_abandon('charge:' || n, token)
FROM generate_series(17, 19) AS n, idem_reserve('charge:' || n) AS r;
SELECT FROM idem_reserve('charge:20', scope => 'tenant-42');
END
	},
	gone => {});

#
# Marks
#
sub name
{
	my ($block) = @_;

	return "$block->{document}:$block->{line}";
}

is(join(' ', map { name($_) } grep { $_->{do} eq 'nothing' } @blocks), '',
	'every block says what a test does with it');
is(join("\n", map { indented($_) } documents()), '', 'no code goes without a fence');
is(join(' ', map { name($_) } grep { $_->{language} ne 'sql' } @to_run), '',
	'all that is run here is SQL');
is(join(' ', map { name($_) } grep { !$groups{ $_->{group} } && $_->{group} ne 'install' } @to_run),
	'', '... in one of the groups');
is(scalar(@install), 1, 'there is one installation');
my %readers = map { $_->{do} eq 'by' ? ("$_->{document} $_->{test}" => 1) : () } @blocks;
foreach my $reader (sort keys %readers)
{
	my ($document, $name, $test) = $reader =~ /(([\w-]+)\.md) (\w+)/;
	my $file = "$FindBin::RealBin/$test.pl";

	ok(-e $file && slurp_file($file) =~ /\b\Q$name\E\b/, "$document is read by $test");
}

# A database "shop" of a plain role, and the roles as on the first day
sub new_shop
{
	$node->safe_psql('postgres', $_) foreach 'DROP DATABASE IF EXISTS shop WITH (FORCE)',
	  (map { "DROP ROLE IF EXISTS $_" } @roles),
	  (map { "CREATE ROLE $_ LOGIN" } grep { !/^(my_app|shop_owner)$/ } @roles),
	  'CREATE DATABASE shop OWNER dba';
	return;
}

# Run blocks in one session, as a reader pastes them.  Returns the SQLSTATEs of
# each one's errors; what psql itself has to say is an error as well.
sub run_blocks
{
	my (@run) = @_;
	my $role = $run[0]{role} // 'my_app';
	my @command = ('psql', '-X', '-q', '-v', 'VERBOSITY=sqlstate',
		'-d', $node->connstr($run[0]{database} // 'shop'));
	my @errors = map { '' } @run;

	push @command, '-U', $role if $role ne 'postgres';
	foreach my $i (0 .. $#run)
	{
		my $file = "$dir/$i.sql";

		unlink $file;
		append_to_file($file, $run[$i]{code});
		push @command, '-f', $file;
	}
	my (undef, $stderr) = run_command(\@command);
	foreach my $line (grep { !/: (?:NOTICE|WARNING|INFO): / } split(/\n/, $stderr))
	{
		my ($i, $error) = $line =~ m{/(\d+)\.sql:\d+: (?:ERROR|error): +(.*)};

		$i //= 0;
		$errors[$i] .= ' ' if $errors[$i] ne '';
		$errors[$i] .= $error // $line;
	}
	return @errors;
}

# Could the next block be pasted into the same session?
sub same_session
{
	my ($one, $other) = @_;

	return !grep { ($one->{$_} // '') ne ($other->{$_} // '') } qw(role database);
}

sub run_session
{
	my (@session) = @_;
	my @errors = run_blocks(@session);

	is($errors[$_], $session[$_]{fails}, name($session[$_]) . ": $session[$_]{group}")
	  foreach 0 .. $#session;
	return;
}

#
# Run them
#
$node->init;
$node->append_conf('postgresql.conf', $_->{code}) foreach grep { $_->{do} eq 'conf' } @blocks;
$node->append_conf('postgresql.conf', "fsync = off\n");
$node->start;

foreach my $name (sort keys %groups)
{
	my $group = $groups{$name};
	my @run = grep { $_->{group} eq $name } @to_run;

	ok(@run > 0, "group $name");
	new_shop();
	if ($group->{before})
	{
		run_session(@install);
		$node->safe_psql('shop', "$group->{before}");
	}
	else
	{
		unshift @run, @install;
	}
	while (@run)
	{
		my @session = shift @run;

		push @session, shift @run while @run && same_session($session[0], $run[0]);
		run_session(@session);
	}
	is($node->safe_psql('shop', "$group->{after}") . "\n",
		$group->{is}, "group $name: what has come of it")
	  if $group->{after};
}
$node->stop('fast');

done_testing();
