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
my @roles = qw(my_app dba app app_keys ops prometheus);

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
GRANT USAGE ON SCHEMA app TO my_app, dba;
GRANT INSERT, SELECT ON app.ledger TO my_app;
END
		# a write that is called again has no effect
		after => <<'END',
SET ROLE my_app;
SELECT count(DISTINCT idem_call('charge', '{"invoice": "inv_5512"}', key => idem_key('charge', 'inv_5512')))
	+ count(DISTINCT idem_call('remind', '{"invoice": "inv_5512"}')) FROM generate_series(1, 3);
RESET ROLE;
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
	hashed => {},
	# keys of a role that the first block makes
	operations => {
		before => <<'END',
SELECT idem_grant('app');
CREATE ROLE app_keys ROLE app;
SET ROLE app;
SET idem_tool.owner = 'app_keys';
SELECT idem_abandon('charge:' || n, token)
FROM generate_series(17, 19) AS n, idem_reserve('charge:' || n) AS r;
SELECT FROM idem_reserve('charge:20', scope => 'tenant-42');
RESET ROLE;
DROP ROLE app_keys;
END
		after => <<'END',
SELECT key, status FROM idem.idempotency_keys ORDER BY key;
END
		is => <<'END' },
charge:17|done
charge:18|failed
charge:19|released
charge:22|done
END
	definer => {
		before => <<'END',
GRANT my_app TO dba;
CREATE SCHEMA app AUTHORIZATION dba;
SET ROLE dba;
CREATE TABLE app.charges (invoice text);
CREATE FUNCTION public.charge_once(invoice text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	r idem.idem_answer := idem.idem_reserve(invoice);
BEGIN
	IF r.status = 'reserved' THEN
		INSERT INTO app.charges VALUES (invoice);
		r.result := '{"charge": "ch_1"}';
		PERFORM idem.idem_complete(invoice, r.result);
	END IF;
	RETURN r.result;
END; $$;
END
		# what a caller sets, with the function's own settings and without
		after => <<'END',
\set charge 'SET ROLE my_app; SELECT charge_once(:invoice); SET idem_tool.scope = x; SET idem_tool.owner = my_app; SET idem_tool.result_ttl = \'1 s\'; SELECT charge_once(:invoice); RESET ALL; RESET ROLE;'
\set invoice '\'98\''
:charge
ALTER FUNCTION charge_once(text) RESET ALL;
\set invoice '\'99\''
:charge
SELECT invoice, count(*) FROM app.charges GROUP BY invoice ORDER BY invoice;
SELECT key, scope, owner, date_trunc('second', expires_at - completed_at)
FROM idem.idempotency_keys ORDER BY key, scope;
END
		is => <<'END' },
{"charge": "ch_1"}
{"charge": "ch_1"}
{"charge": "ch_1"}
{"charge": "ch_1"}
98|1
99|2
98|billing|dba|1 day
99||dba|1 day
99|x|my_app|00:00:01
END
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
	  (map { "CREATE ROLE $_ LOGIN" } grep { !/^(my_app|app_keys)$/ } @roles),
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
