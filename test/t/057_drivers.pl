# The statements of docs/drivers.md, and what docs/reference.md says of results
# and refusals, do what is told of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use IdemTest::Blocks;
use Test::More;

my $node = new_node('drivers');
my $s = session($node);

#
# Two statements for every driver
#
my ($reserve, $complete) = map { /(SELECT.*?);/sg } block_by('057_drivers', 'docs/drivers.md');
$s->query("PREPARE reserve (text, text, text, text) AS $reserve;"
	  . "PREPARE complete (text, text, text) AS $complete");

my $call = q[EXECUTE reserve('k', '5 min', '{"b": 1, "a": 2}', 'me')];
my ($status, $nothing, $token, $attempt) = split(/\|/, $s->query($call));

is("$status $attempt", 'reserved 1', 'a reservation');
my (undef, $fresh) = split(/\|/,
	$s->query(qq[EXECUTE complete('k', '{"long": 1.50, "b": [1, 2], "a": null, "b": 2}', '$token')]));
my ($done, $replay) = split(/\|/, $s->query($call));
is($done, 'done', 'is done');
is($replay, $fresh, 'a fresh result and its replay are the same text');

$s->query('BEGIN');
is($s->try($call =~ s/'k'/'other'/r), '25001', 'not within a transaction');
$s->query('ROLLBACK');
is($s->query(q[SELECT count(*) FROM idem_lookup('other')]), '0', 'nothing is left of it');

# The reference's own
my ($record) = grep { /idem_complete/ && !/BEGIN/ } block_by('057_drivers', 'docs/reference.md');
$token = $s->query(q[SELECT token FROM idem_reserve('r')]);
$s->query("PREPARE record (text, text, bigint) AS $record");
is($s->query(qq[EXECUTE record('r', '{"long": 1.50, "b": 1}', $token)]),
	't|' . $s->query(q[SELECT result FROM idem_reserve('r')]), 'the same with one of its own type');

#
# A refusal in the same transaction
#
$s->query('CREATE TABLE stock (item text PRIMARY KEY, amount integer CHECK (amount >= 0));'
	  . q[INSERT INTO stock VALUES ('salt', 1)]);
my @refusals = grep { /ROLLBACK TO/ } block_by('057_drivers', 'docs/reference.md');
is(scalar(@refusals), 1, 'there is a refusal');
my ($stdout, $stderr) = ('', '');
$node->psql('postgres', $refusals[0], stdout => \$stdout, stderr => \$stderr,
	extra_params => [ '-v', 'VERBOSITY=sqlstate' ], on_error_stop => 0);
like($stderr, qr/^psql:<stdin>:\d+: ERROR:  23514$/, 'one statement fails, which is what it is about');
is($s->query(q[SELECT status, result FROM idem_reserve('order:3')]),
	'failed|{"refused": "out of stock"}', 'is recorded');
is($s->query('SELECT amount FROM stock'), '1', 'and nothing else');

$node->stop('fast');
done_testing();
