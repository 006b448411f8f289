-- What happens in the shop while the pipeline runs: four transactions, six changed rows.

-- A new customer and her first order arrive together, so they leave together.
BEGIN;
INSERT INTO customers (id, name, email) VALUES (3, 'Żaneta', NULL);
INSERT INTO orders (id, customer_id, item, total) VALUES (2, 3, 'tea, "first flush"', 12.50);
COMMIT;

-- One statement, two rows.
BEGIN;
UPDATE orders SET status = 'paid';
COMMIT;

BEGIN;
UPDATE customers SET email = 'zaneta@example.org' WHERE id = 3;
COMMIT;

-- Cancelled after all.
BEGIN;
DELETE FROM orders WHERE id = 1;
COMMIT;
